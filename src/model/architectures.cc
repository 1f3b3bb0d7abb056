#include "model/architectures.h"

namespace tandem {
namespace {

constexpr Architecture kArchitectures[] = {
    {"gemma3", read_gemma3}, {"llama", read_llama}, {"phi3", read_phi3},
    {"qwen2", read_qwen2},   {"qwen3", read_qwen3},
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& a : kArchitectures)
    if (name == a.name) return &a;
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& a : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(a.name);
  return names;
}

}  // namespace tandem
