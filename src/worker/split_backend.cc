#include "worker/split_backend.h"

#include <algorithm>
#include <cstring>

namespace tandem {
namespace {

class SplitBackend : public Backend {
 public:
  SplitBackend(const ModelConfig& config, std::unique_ptr<Backend> front, std::unique_ptr<Backend> back)
      : config_(config), front_(std::move(front)), back_(std::move(back)), front_bytes_(front_->page_bytes()), page_bytes_(back_->page_bytes()),
        front_has_lean_(front_->weight_bytes().lean > 0), back_has_lean_(back_->weight_bytes().lean > 0) {
    for (size_t g = 0; g < page_bytes_.size(); ++g) page_bytes_[g] += front_bytes_[g];
  }

  const ModelConfig& config() const override { return config_; }
  std::vector<int64_t> page_bytes() const override { return page_bytes_; }
  WeightBytes weight_bytes() const override {
    const WeightBytes front = front_->weight_bytes(), back = back_->weight_bytes();
    if (!front_has_lean_ && !back_has_lean_) return {front.full + back.full, 0};
    return {front.full + back.full, (front_has_lean_ ? front.lean : front.full) + (back_has_lean_ ? back.lean : back.full)};
  }
  Status reserve_pages(const std::vector<int>& n_pages) override { return reserve_tiers(n_pages, std::vector<int>(n_pages.size(), 0)); }
  Status reserve_tiers(const std::vector<int>& n_pages, const std::vector<int>& n_swap_pages) override {
    CHECK_OK(front_->reserve_tiers(n_pages, n_swap_pages));
    return back_->reserve_tiers(n_pages, n_swap_pages);
  }
  bool attends_to_swapped() const override { return false; }
  Status place_pages(const std::vector<int>&, const std::vector<uint8_t*>&) override {
    return internal_error("pages of two backends are not placed in one memory");
  }
  // Layers ascend in a page, so that the processor's come first.
  Status import_page(int group, PageId to, const std::function<Status(uint8_t*)>& fill) override {
    if (group < 0 || group >= static_cast<int>(page_bytes_.size())) return internal_error("import into a group that is not there");
    const size_t g = static_cast<size_t>(group), n_front = static_cast<size_t>(front_bytes_[g]);
    const size_t n_back = static_cast<size_t>(page_bytes_[g]) - n_front;
    staged_.resize(std::max(staged_.size(), n_front + n_back));
    CHECK_OK(fill(staged_.data()));
    const auto part = [this](size_t first, size_t n) {
      return [this, first, n](uint8_t* page) {
        std::memcpy(page, staged_.data() + first, n);
        return ok_status();
      };
    };
    if (n_front > 0) CHECK_OK(front_->import_page(group, to, part(0, n_front)));
    return n_back > 0 ? back_->import_page(group, to, part(n_front, n_back)) : ok_status();
  }
  // A side that has no lean set computes with the one that it has; where neither has one, the step is refused.
  Status forward(const StepBatch& batch) override {
    const WeightSet otherwise = front_has_lean_ || back_has_lean_ ? WeightSet::kFull : batch.weights;
    part_ = batch;
    part_.weights = front_has_lean_ ? batch.weights : otherwise;
    CHECK_OK(front_->forward(part_));
    part_.weights = back_has_lean_ ? batch.weights : otherwise;
    part_.hidden = front_->hidden().data();
    return back_->forward(part_);
  }
  std::span<const float> logits(int i) override { return back_->logits(i); }
  Status sample(std::span<const SampleRequest> requests, std::span<SampleResult> results) override { return back_->sample(requests, results); }
  Status copy_pages(std::span<const PageCopy> copies) override {
    CHECK_OK(front_->copy_pages(copies));
    return back_->copy_pages(copies);
  }
  std::string description() const override { return front_->description() + ", then " + back_->description(); }

 private:
  const ModelConfig config_;
  std::unique_ptr<Backend> front_, back_;
  const std::vector<int64_t> front_bytes_;  // of a page, per group
  std::vector<int64_t> page_bytes_;
  std::vector<uint8_t> staged_;  // a page on its way
  const bool front_has_lean_, back_has_lean_;
  StepBatch part_;               // kept for its memory
};

}  // namespace

std::unique_ptr<Backend> create_split_backend(const ModelConfig& config, std::unique_ptr<Backend> front, std::unique_ptr<Backend> back) {
  return std::make_unique<SplitBackend>(config, std::move(front), std::move(back));
}

}  // namespace tandem
