// A model file on the CPU backend, with one sequence.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "gguf/gguf_reader.h"

namespace tandem {

class GoldenModel {
 public:
  // A file of TANDEM_MODELS_DIR; a model that is not there fails the test.
  static std::string real_path(const std::string& file);
  // Two threads, f16 pages for `max_tokens`. `kernels` must outlive it; without, those of this processor.
  GoldenModel(const std::string& path, bool float_activations, int max_tokens, const KernelTable* kernels = nullptr);
  static const KernelTable& best_kernels();

  // Runs `ids` in chunks and calls visit(position, logits) for positions >= first_visited.
  void run(std::span<const int32_t> ids, int chunk, int first_visited,
           const std::function<void(int, std::span<const float>)>& visit);
  Backend& backend() { return *backend_; }

  static std::unique_ptr<GgufModel> open(const std::string& path);

 private:
  std::unique_ptr<Backend> backend_;
  std::vector<PageId> pages_;
};

// log(sum(exp(x))) in double, by the definition.
double log_sum_exp(std::span<const float> x);
// log-probability of the likeliest token minus that of the second.
struct Likeliest {
  int32_t token;
  double margin;
};
Likeliest likeliest(std::span<const float> logits);

}  // namespace tandem
