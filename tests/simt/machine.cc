// The device's state, its memory, its errors.
#include "machine.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "fibers.h"

namespace simt {
namespace {

void* reserve(size_t n_bytes) {
  void* p = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("stand-in device: cannot reserve addresses");
    std::abort();
  }
  return p;
}

// Function symbols of this program by address; empty where it may not be read.
const std::map<uintptr_t, std::string>& symbols() {
  static std::map<uintptr_t, std::string> table = [] {
    std::map<uintptr_t, std::string> found;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat st {};
    if (fd < 0 || fstat(fd, &st) != 0) return found;
    const size_t size = static_cast<size_t>(st.st_size);
    void* p = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (p == MAP_FAILED) return found;
    const char* base = static_cast<const char*>(p);
    const auto* eh = reinterpret_cast<const ElfW(Ehdr)*>(base);
    const auto* sh = reinterpret_cast<const ElfW(Shdr)*>(base + eh->e_shoff);
    uintptr_t bias = 0;
    dl_iterate_phdr([](dl_phdr_info* info, size_t, void* out) { *static_cast<uintptr_t*>(out) = info->dlpi_addr; return 1; }, &bias);
    for (int i = 0; i < eh->e_shnum; ++i) {
      if (sh[i].sh_type != SHT_SYMTAB) continue;
      const auto* sym = reinterpret_cast<const ElfW(Sym)*>(base + sh[i].sh_offset);
      const char* names = base + sh[sh[i].sh_link].sh_offset;
      for (size_t k = 0; k < sh[i].sh_size / sizeof *sym; ++k) {
        if ((sym[k].st_info & 0xf) == STT_FUNC && sym[k].st_value != 0) found.emplace(sym[k].st_value + bias, names + sym[k].st_name);
      }
    }
    munmap(p, size);
    return found;
  }();
  return table;
}

}  // namespace

const char* fault_name(Fault fault) {
  constexpr const char* kNames[] = {"divergent barrier", "out of bounds", "use after free", "misaligned", "unwritten shared memory",
                                    "race in shared memory", "host touches device memory", "device touches host memory",
                                    "streams without order", "host races with a copy", "race between blocks", "stack overflow",
                                    "trap", "bad launch"};
  return kNames[static_cast<size_t>(fault)];
}

std::string function_name(const void* address) {
  const auto& table = symbols();
  auto it = table.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (it == table.begin()) return "a kernel";
  --it;
  int status = 0;
  char* text = abi::__cxa_demangle(it->second.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : it->second;
  std::free(text);
  // Parameters say little here.
  if (size_t at = name.rfind('('); at != std::string::npos && name.back() == ')') {
    int depth = 0;
    for (at = name.size(); at-- > 0;) {
      depth += name[at] == ')' ? 1 : name[at] == '(' ? -1 : 0;
      if (depth == 0) break;
    }
    name.resize(at);
  }
  if (name.starts_with("void ")) name.erase(0, 5);
  return name;
}

Machine& machine() {
  static Machine& m = *new Machine;  // outlives every static that still uses it
  return m;
}

Options& options() { return machine().options; }
const std::vector<Report>& reports() { return machine().reports; }
void clear_reports() { machine().reports.clear(); }
bool has_report(Fault fault) {
  return std::any_of(machine().reports.begin(), machine().reports.end(), [&](const Report& r) { return r.fault == fault; });
}
bool is_instrumented() { return machine().is_instrumented; }
const Counters& counters() { return machine().counters; }
void clear_counters() {
  Machine& m = machine();
  const int64_t used = m.counters.device_bytes_used;
  m.counters = Counters{};
  m.counters.device_bytes_used = m.counters.device_bytes_peak = used;
}

void start_machine() {
  Machine& m = machine();
  if (m.device_begin != 0) return;
  m.granules = static_cast<Granule*>(reserve(kDeviceSpan / kGranule * sizeof(Granule)));
  m.block_writers = static_cast<uint64_t*>(reserve(kDeviceSpan / 4 * sizeof(uint64_t)));
  m.device_begin = m.device_next = reinterpret_cast<uintptr_t>(reserve(kDeviceSpan));
  m.random = m.options.order_seed * 0x9e3779b97f4a7c15ull + 1;
}

void add_report(Fault fault, const std::string& text) {
  Machine& m = machine();
  constexpr size_t kMost = 1000;
  if (m.reports.size() < kMost) m.reports.push_back({fault, text});
  if (std::getenv("TANDEM_SIMT_PRINT") != nullptr) std::fprintf(stderr, "stand-in device: %s: %s\n", fault_name(fault), text.c_str());
}

void fail_access(Fault fault, const std::string& text, cudaError_t error) {
  add_report(fault, text);
  if (current_fiber != nullptr) abort_launch(error);
}

std::string describe_address(uintptr_t a) {
  const Machine& m = machine();
  const Allocation* nearest = nullptr;
  for (const Allocation& h : m.allocations) {
    if (h.begin != 0 && h.begin <= a && (nearest == nullptr || h.begin > nearest->begin)) nearest = &h;
  }
  if (nearest == nullptr) return "before every allocation";
  const std::string name = nearest->label.empty() ? "allocation #" + std::to_string(nearest - m.allocations.data()) : nearest->label;
  return "byte " + std::to_string(a - nearest->begin) + " of " + name + " (" + std::to_string(nearest->end - nearest->begin) + " bytes" +
         (nearest->is_freed ? ", freed)" : ")");
}

void label(const void* p, const char* name) {
  Machine& m = machine();
  const uintptr_t a = reinterpret_cast<uintptr_t>(p);
  if (m.device_begin != 0 && m.is_device(a)) m.allocations[m.granules[(a - m.device_begin) / kGranule].allocation].label = name;
}

void report_cross_stream(uintptr_t a, bool is_write, uint32_t operation, uint32_t other) {
  const Machine& m = machine();
  const Operation &now = m.operations[operation], &then = m.operations[other];
  fail_access(Fault::kCrossStream, now.name + " on stream " + std::to_string(now.stream) + (is_write ? " writes " : " reads ") + describe_address(a) +
              ", used by " + then.name + " on stream " + std::to_string(then.stream) + " with no order between", cudaErrorLaunchFailure);
}

bool check_device_range(uintptr_t begin, size_t n_bytes, bool is_write, uint32_t operation) {
  Machine& m = machine();
  if (n_bytes == 0) return true;
  const Allocation& held = m.allocations[m.granules[(begin - m.device_begin) / kGranule].allocation];
  if (held.is_freed || begin < held.begin || begin + n_bytes > held.end) {
    add_report(held.is_freed ? Fault::kUseAfterFree : Fault::kOutOfBounds,
               "a copy of " + std::to_string(n_bytes) + " bytes " + (is_write ? "to " : "from ") + describe_address(begin));
    return false;
  }
  const size_t n_reports = m.reports.size();
  for (uintptr_t a = begin & ~(kGranule - 1); a < begin + n_bytes && m.reports.size() == n_reports; a += kGranule) touch_granule(m, a, is_write, operation);
  return true;
}

}  // namespace simt
