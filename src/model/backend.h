// A device that runs steps. The engine sees only this; it decides nothing about who runs, and changes no
// sequence. Confined to the engine thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"
#include "model/sampler.h"
#include "model/step_batch.h"

namespace tandem {

struct PageCopy {
  int group;
  PageId from, to;
};

// Of matrices that a step reads, by set. No lean set: 0.
struct WeightBytes {
  int64_t full = 0, lean = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const ModelConfig& config() const = 0;
  // Bytes of one page of each KV group, and the reservation of the pools: n_pages[g] pages for group g,
  // touched at once unless the backend was told otherwise. kExhausted with the sizes when memory does not
  // allow it. Called once, before forward.
  virtual std::vector<int64_t> page_bytes() const = 0;
  virtual Status reserve_pages(const std::vector<int>& n_pages) = 0;
  // Touches pages that reserve_pages left untouched, until done or `stop`: a restarted worker serves at once
  // and its pool, seconds of work for the kernel, fills meanwhile. The only call allowed from another thread
  // while the engine thread uses the backend. kExhausted: the memory is not there.
  virtual Status touch_pages(const std::atomic<bool>& /*stop*/) { return ok_status(); }
  // Instead of reserve_pages: group g's pages lie one after the other at memory[g], which outlives the backend
  // and is aligned to 64 bytes. What is in them stays.
  virtual Status place_pages(const std::vector<int>& n_pages, const std::vector<uint8_t*>& memory) = 0;
  // As reserve_pages, with n_swap_pages[g] more in host memory, numbered behind the others. Where attends_to_swapped()
  // is false they are only copied from and to.
  virtual Status reserve_tiers(const std::vector<int>& n_pages, const std::vector<int>& n_swap_pages) {
    std::vector<int> all = n_pages;
    for (size_t g = 0; g < all.size() && g < n_swap_pages.size(); ++g) all[g] += n_swap_pages[g];
    return reserve_pages(all);
  }
  virtual bool attends_to_swapped() const { return true; }
  // `fill` writes the bytes of a page into memory it is given, from where they go to page `to`, beside running steps.
  // An error of `fill` is returned and the page is undefined.
  virtual Status import_page(int /*group*/, PageId /*to*/, const std::function<Status(uint8_t*)>& /*fill*/) {
    return internal_error("this backend imports no pages");
  }
  // A step of a set that is not there is refused (kInvalidArgument).
  virtual WeightBytes weight_bytes() const { return {}; }
  // Runs one step: K/V of all tokens are stored in their pages, logits of logit_rows are kept.
  virtual Status forward(const StepBatch& batch) = 0;
  // Logits of logit_rows[i] of the last forward: [vocab_size] floats, valid until the next forward.
  virtual std::span<const float> logits(int i) = 0;
  // Of a backend whose layers are not the model's last (stage.h), instead of logits: what its last layer made of the
  // last forward's tokens, [M][hidden_dim], valid until the next forward.
  virtual std::span<const float> hidden() { return {}; }
  // Draws tokens from the last forward's logits; independent rows, in parallel. The logits may be gone after it. An
  // error is the device's.
  virtual Status sample(std::span<const SampleRequest> requests, std::span<SampleResult> results) = 0;
  virtual Status copy_pages(std::span<const PageCopy> copies) = 0;
  virtual std::string description() const = 0;  // "cpu avx512vnni 2 threads"
};

}  // namespace tandem
