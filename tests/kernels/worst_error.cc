#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "tests/kernels/tested_column.h"

namespace tandem {

void WorstError::add(double got, double want, double bound, int64_t place) {
  if (got == want) return;
  const double ratio = std::abs(got - want) / bound;
  if (std::isnan(ratio)) has_nan_ = true;
  if (!(ratio <= worst_)) {
    worst_ = ratio;
    got_ = got;
    want_ = want;
    place_ = place;
  }
}

void WorstError::check() const {
  if (std::getenv("TANDEM_PRINT_ERRORS")) {
    std::cout << what_ << ": worst " << worst_ << " of bound (got " << got_ << ", want " << want_
              << ")\n";
  }
  INFO(what_ << ": worst error is " << worst_ << " of its bound at element " << place_ << ": got "
             << got_ << ", want " << want_);
  CHECK_FALSE(has_nan_);
  CHECK(worst_ <= 1.0);
}

}  // namespace tandem
