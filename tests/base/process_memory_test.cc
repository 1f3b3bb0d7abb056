// What the kernel says of this process's memory.
#include "base/process_memory.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>

namespace tandem {

TEST_CASE("process memory: the fields of smaps_rollup") {
  const ProcessMemory m = parse_smaps_rollup(
      "55d0-7ffd ---p 00000000 00:00 0          [rollup]\n"
      "Rss:                2048 kB\nPss:                 100 kB\nPss_Anon:             70 kB\n"
      "AnonHugePages:         4 kB\nShmemPmdMapped:        8 kB\nFilePmdMapped:        12 kB\n");
  CHECK(m.rss_bytes == 2048 * 1024);
  CHECK(m.pss_bytes == 100 * 1024);
  CHECK(m.private_huge_bytes == 4 * 1024);
  CHECK(m.memfd_huge_bytes == 8 * 1024);
  CHECK(m.file_huge_bytes == 12 * 1024);
  CHECK(parse_smaps_rollup("").pss_bytes == 0);
}

TEST_CASE("process memory: what was touched is counted") {
  const auto before = read_process_memory();
  REQUIRE(before.ok());
  CHECK(before->pss_bytes > 0);
  // A mapping, which no compiler leaves out.
  void* block = mmap(nullptr, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  REQUIRE(block != MAP_FAILED);
  const auto after = read_process_memory();
  REQUIRE(after.ok());
  CHECK(after->pss_bytes - before->pss_bytes > 60 << 20);
  munmap(block, 64 << 20);
}

}  // namespace tandem
