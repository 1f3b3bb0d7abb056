// What /status.json tells of the box besides sensors: system, memory of processes, size of the log. Asks the
// file system, so it runs on the connection thread that wants the page, never on the loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "supervisor/status_json.h"

namespace tandem {

struct BoxFacts {
  std::string kernel, distribution, machine, cpu_model;
  int n_cores = 0;
  int64_t supervisor_rss_bytes = 0;       // 0: not known
  std::vector<int64_t> worker_rss_bytes;  // of StatusView::workers
  int64_t log_file_bytes = -1;                             // database + WAL; -1: no file
};

BoxFacts read_box_facts(const StatusView& view);

}  // namespace tandem
