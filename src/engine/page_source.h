// Copies pages lent by other workers into the own pool. Confined to the engine thread.
#pragma once

#include "base/status.h"
#include "engine/request.h"

namespace tandem {

class PageSource {
 public:
  virtual ~PageSource() = default;
  // An error says what is wrong with the loan (out of range, freed, of a dead owner, damaged); the content of `to`
  // is then undefined.
  virtual Status copy(uint32_t source, uint64_t generation, int group, RemotePage from, PageId to) = 0;
};

}  // namespace tandem
