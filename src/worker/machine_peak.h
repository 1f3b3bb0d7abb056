// What this machine can do at most, measured: the yardstick of bench and doctor.
#pragma once

#include "kernels/kernel_table.h"

namespace tandem {

struct MachinePeak {
  double read_bytes_per_s = 0;  // plain reading of memory, all threads together
  double int8_ops_per_s = 0;    // int8 dot products in registers; a multiply-add counts two
};
// The best of several short runs of the table's own loops on a team like the one that serves; about
// a second.
MachinePeak measure_machine(const KernelTable& kernels, int n_threads);

}  // namespace tandem
