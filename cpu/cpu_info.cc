#include "cpu/cpu_info.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/file_io.h"
#include "cpu/cgroup_quota.h"
#include "cpu/cpu_topology.h"

namespace tandem {
namespace {

#if defined(__x86_64__)
// The compiler's probes also check that the operating system saves the registers (XGETBV).
std::vector<std::string> detect_features() {
  std::vector<std::string> found;
  __builtin_cpu_init();
#define PROBE(name, builtin_name) \
  if (__builtin_cpu_supports(builtin_name)) found.emplace_back(name)
  PROBE("sse4_2", "sse4.2");
  PROBE("avx", "avx");
  PROBE("avx2", "avx2");
  PROBE("fma", "fma");
  PROBE("avx512f", "avx512f");
  PROBE("avx512bw", "avx512bw");
  PROBE("avx512dq", "avx512dq");
  PROBE("avx512vl", "avx512vl");
  PROBE("avx512vbmi", "avx512vbmi");
  PROBE("avx512_vnni", "avx512vnni");
  PROBE("avx512_bf16", "avx512bf16");
  PROBE("gfni", "gfni");
#undef PROBE
  // Without a name for the builtin in g++ 12: CPUID leaf 1 ECX bit 29, leaf 7.1 EAX bit 4.
  const bool has_avx = std::find(found.begin(), found.end(), "avx") != found.end();
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (has_avx && __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1)) found.emplace_back("f16c");
  if (has_avx && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1)) found.emplace_back("avx_vnni");
  return found;
}

std::string detect_model_name() {
  unsigned words[12] = {};
  for (unsigned i = 0; i < 3; ++i) {
    unsigned* w = words + 4 * i;
    if (!__get_cpuid(0x80000002 + i, w, w + 1, w + 2, w + 3)) return "x86-64";
  }
  char text[sizeof(words) + 1] = {};
  std::memcpy(text, words, sizeof(words));
  std::string name = text;
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "x86-64" : name;
}
#elif defined(__aarch64__)
std::vector<std::string> detect_features() {
  std::vector<std::string> found;
  const unsigned long words[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
  const struct {
    int word;
    unsigned long bit;
    const char* name;
  } probes[] = {{0, HWCAP_ASIMD, "asimd"}, {0, HWCAP_FPHP, "fphp"},   {0, HWCAP_ASIMDHP, "asimdhp"},
                {0, HWCAP_ASIMDDP, "asimddp"}, {0, HWCAP_SVE, "sve"}, {1, HWCAP2_SVE2, "sve2"},
                {1, HWCAP2_I8MM, "i8mm"},  {1, HWCAP2_BF16, "bf16"}};
  for (const auto& probe : probes) {
    if (words[probe.word] & probe.bit) found.emplace_back(probe.name);
  }
  return found;
}

// Arm's part numbers of the main ID register (each core's technical reference manual).
const char* arm_part(unsigned part) {
  const struct {
    unsigned part;
    const char* name;
  } names[] = {{0xd03, "Cortex-A53"},   {0xd04, "Cortex-A35"},   {0xd05, "Cortex-A55"},   {0xd07, "Cortex-A57"},
               {0xd08, "Cortex-A72"},   {0xd09, "Cortex-A73"},   {0xd0a, "Cortex-A75"},   {0xd0b, "Cortex-A76"},
               {0xd0c, "Neoverse-N1"},  {0xd0d, "Cortex-A77"},   {0xd40, "Neoverse-V1"},  {0xd41, "Cortex-A78"},
               {0xd42, "Cortex-A78AE"}, {0xd44, "Cortex-X1"},    {0xd46, "Cortex-A510"},  {0xd47, "Cortex-A710"},
               {0xd48, "Cortex-X2"},    {0xd49, "Neoverse-N2"},  {0xd4d, "Cortex-A715"},  {0xd4f, "Neoverse-V2"},
               {0xd80, "Cortex-A520"},  {0xd81, "Cortex-A720"}};
  for (const auto& n : names) {
    if (n.part == part) return n.name;
  }
  return nullptr;
}

// Of the core this thread runs on: MIDR_EL1, which Linux lets programs read.
std::string detect_model_name() {
  if (!(getauxval(AT_HWCAP) & HWCAP_CPUID)) return "ARMv8";
  uint64_t id = 0;
  asm("mrs %0, MIDR_EL1" : "=r"(id));
  const unsigned implementer = id >> 24 & 0xff, part = id >> 4 & 0xfff;
  if (const char* name = implementer == 0x41 ? arm_part(part) : nullptr) return name;
  char text[64];
  std::snprintf(text, sizeof text, "ARMv8 implementer 0x%02x part 0x%03x", implementer, part);
  return text;
}
#else
std::vector<std::string> detect_features() { return {}; }
std::string detect_model_name() { return "unknown CPU"; }
#endif

}  // namespace

const cpu_set_t& allowed_cpus() {
  static const cpu_set_t set = [] {
    cpu_set_t s;
    CPU_ZERO(&s);
    if (sched_getaffinity(0, sizeof(s), &s) != 0) CPU_ZERO(&s);
    return s;
  }();
  return set;
}

CpuInfo detect_cpu() {
  CpuInfo info;
  info.model_name = detect_model_name();
  info.features = detect_features();
  info.n_usable_cores = std::max<int>(1, static_cast<int>(machine_topology().cores.size()));
  info.limit = "cpu set";
  const auto groups = read_file("/proc/self/cgroup");  // a kernel without control groups has none
  info.quota_cores = groups.ok() ? cgroup_quota(*groups, "/sys/fs/cgroup") : 0;
  const int n_paid = threads_of_quota(info.quota_cores);
  if (n_paid > 0 && n_paid < info.n_usable_cores) {
    info.n_usable_cores = n_paid;
    info.limit = "cgroup quota";
  }
  return info;
}

}  // namespace tandem
