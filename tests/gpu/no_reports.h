// What the stand-in has seen so far must be nothing.
#pragma once

#include <catch2/catch.hpp>

#include "simt.h"

namespace tandem {

inline void check_no_reports() {
  for (const simt::Report& r : simt::reports()) {
    INFO(simt::fault_name(r.fault) << ": " << r.text);
    CHECK(false);
  }
}

}  // namespace tandem
