#include "ctl/board_profile.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "ctl/doctor_checks.h"
#include "ctl/programs.h"
#include "ctl/tool_process.h"

namespace tandem::ctl {

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// "MemTotal:  16316404 kB"
int64_t total_memory(const std::string& root) {
  std::ifstream in(root + "/proc/meminfo");
  std::string name;
  for (long long kib = 0; in >> name >> kib; in.ignore(64, '\n')) {
    if (name == "MemTotal:") return int64_t{kib} * 1024;
  }
  return 0;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

int64_t probed_memory_bytes(const std::string& line) {
  const size_t of = line.rfind(" MiB of ");
  if (of == std::string::npos) return 0;
  long long mib = 0;
  return std::sscanf(line.c_str() + of, " MiB of %lld free", &mib) == 1 && mib > 0 ? int64_t{mib} << 20 : 0;
}

BoardFacts read_board(const std::string& root) {
  BoardFacts facts;
  std::getline(std::ifstream(root + "/proc/device-tree/model"), facts.board, '\0');
  facts.memory_bytes = total_memory(root);
  facts.has_nvidia_card = has_nvidia_card(root);
  if (!root.empty() || (!facts.has_nvidia_card && !contains(facts.board, "Jetson"))) return facts;
  const auto worker = find_cuda_worker();
  if (!worker.ok()) {
    facts.gpu_trouble = "tandem-worker-cuda is not installed";
    return facts;
  }
  const auto line = capture_program(*worker, {"--probe-device", "0"});
  facts.gpu_memory_bytes = line.ok() ? probed_memory_bytes(*line) : 0;
  if (facts.gpu_memory_bytes == 0) facts.gpu_trouble = line.ok() ? *line : line.status().message();
  while (!facts.gpu_trouble.empty() && facts.gpu_trouble.back() == '\n') facts.gpu_trouble.pop_back();
  return facts;
}

ProfileProposal propose_profile(const BoardFacts& facts) {
  const bool is_jetson = contains(facts.board, "Jetson") || contains(facts.board, "Orin");
  if (is_jetson && facts.gpu_memory_bytes > 0) return {"jetson-orin", "the board is a " + facts.board};
  if (contains(facts.board, "Raspberry Pi")) {
    return {"raspberry-pi-5", "the board is a " + facts.board + (contains(facts.board, "Pi 5") ? "" : ", for which this is the nearest")};
  }
  if (facts.gpu_memory_bytes > 0) {
    // A card of 8 GB says a little less than 8 GiB.
    const double gib = static_cast<double>(facts.gpu_memory_bytes) / kGiB;
    const int size = gib > 7 ? 8 : gib > 5 ? 6 : gib > 3 ? 4 : 0;
    const std::string found = fmt::format("the card has {:.1f} GiB", gib);
    if (size > 0) return {fmt::format("x86-gpu-{}gb", size), found};
    return {"cpu-only", found + ", too little for weights and K/V"};
  }
  if (facts.has_nvidia_card || is_jetson) {
    return {"cpu-only", fmt::format("there is an NVIDIA device, but it cannot be used ({}); ask again when it can",
                                    facts.gpu_trouble.empty() ? "not looked at" : facts.gpu_trouble)};
  }
  return {"cpu-only", fmt::format("no graphics device for compute, {:.1f} GiB of memory", static_cast<double>(facts.memory_bytes) / kGiB)};
}

}  // namespace tandem::ctl
