// Counts the 32-byte sectors that the accesses of each warp touch. The k-th time a lane passes an instruction
// belongs together with the k-th time of the other lanes of its warp.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "fibers.h"

namespace simt {
namespace {

constexpr unsigned kSector = 32;

struct Key {
  uintptr_t pc;
  uint32_t occurrence, warp, allocation;
  bool is_write;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& k) const {
    return (k.pc * 0x9e3779b97f4a7c15ull) ^ (size_t{k.occurrence} << 20) ^ (size_t{k.warp} << 8) ^ k.allocation;
  }
};
struct LaneKey {
  uintptr_t pc;
  uint32_t thread;
  bool operator==(const LaneKey&) const = default;
};
struct LaneKeyHash {
  size_t operator()(const LaneKey& k) const { return (k.pc * 0x9e3779b97f4a7c15ull) ^ k.thread; }
};
struct Piece {
  uintptr_t at;
  unsigned n_bytes;
};
struct State {
  std::unordered_map<Key, std::vector<Piece>, KeyHash> accesses;  // of the block
  std::unordered_map<LaneKey, uint32_t, LaneKeyHash> occurrences;
  std::unordered_map<uint32_t, std::vector<uintptr_t>> sectors;   // of the launch, per allocation
  std::string kernel;
  std::map<std::pair<std::string, uint32_t>, Traffic> totals;
};
State& state() {
  static State& s = *new State;
  return s;
}

}  // namespace

void begin_traffic(const Launch& launch) {
  State& s = state();
  s.kernel = function_name(launch.type->function);
  s.sectors.clear();
}

void note_access(uintptr_t a, unsigned n_bytes, bool is_write, const void* pc) {
  State& s = state();
  const Machine& m = machine();
  const Fiber& f = *current_fiber;
  const uintptr_t at = reinterpret_cast<uintptr_t>(pc);
  const uint32_t k = s.occurrences[{at, f.number}]++;
  s.accesses[{at, k, f.warp, m.granules[(a - m.device_begin) / kGranule].allocation, is_write}].push_back({a, n_bytes});
}

void end_traffic_block() {
  State& s = state();
  std::vector<uintptr_t> sectors;
  for (auto& [key, pieces] : s.accesses) {
    sectors.clear();
    int64_t asked = 0;
    std::sort(pieces.begin(), pieces.end(), [](const Piece& x, const Piece& y) { return x.at < y.at; });
    int64_t distinct = 0;
    uintptr_t covered = 0;
    for (const Piece& p : pieces) {
      asked += p.n_bytes;
      const uintptr_t begin = std::max(p.at, covered), end = p.at + p.n_bytes;
      if (end > begin) distinct += static_cast<int64_t>(end - begin), covered = end;
      for (uintptr_t x = p.at / kSector; x <= (end - 1) / kSector; ++x) {
        if (sectors.empty() || sectors.back() != x) sectors.push_back(x);
      }
    }
    std::sort(sectors.begin(), sectors.end());
    sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
    const int64_t n = static_cast<int64_t>(sectors.size()), least = (distinct + kSector - 1) / kSector;
    Traffic& t = s.totals[{s.kernel, key.allocation}];
    if (key.is_write) ++t.writes, t.write_bytes += asked, t.write_sectors += n, t.write_least += least;
    else ++t.reads, t.read_bytes += asked, t.read_sectors += n, t.read_least += least;
    auto& all = s.sectors[key.allocation];
    all.insert(all.end(), sectors.begin(), sectors.end());
  }
  for (auto& [allocation, all] : s.sectors) {
    if (all.size() < 4096) continue;
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
  }
  s.accesses.clear();
  s.occurrences.clear();
}

void end_traffic() {
  State& s = state();
  for (auto& [allocation, all] : s.sectors) {
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    s.totals[{s.kernel, allocation}].footprint_bytes += static_cast<int64_t>(all.size() * kSector);
  }
  s.sectors.clear();
}

std::vector<Traffic> traffic() {
  std::vector<Traffic> out;
  for (const auto& [key, t] : state().totals) {
    out.push_back(t);
    out.back().kernel = key.first;
    const std::string& label = machine().allocations[key.second].label;
    out.back().allocation = label.empty() ? "#" + std::to_string(key.second) : label;
  }
  return out;
}

std::vector<LiveAllocation> allocations() {
  std::vector<LiveAllocation> out;
  const auto& all = machine().allocations;
  for (size_t i = 1; i < all.size(); ++i) {
    if (!all[i].is_freed) out.push_back({all[i].label.empty() ? "#" + std::to_string(i) : all[i].label, all[i].end - all[i].begin});
  }
  return out;
}

void clear_traffic() { state().totals.clear(); }

}  // namespace simt
