// The host pool in a memfd: what survives its owner, and what of it is never believed.
#include "worker/host_pool.h"

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "base/unique_fd.h"

namespace tandem {
namespace {

struct Memory {
  UniqueFd fd{memfd_create("host_pool_test", MFD_CLOEXEC)};
  HostPoolShape shape{42, 4, 100, {64, 128}, {8, 4}};
  Memory() { REQUIRE(ftruncate(fd.get(), *HostPool::bytes_needed(shape)) == 0); }
  std::unique_ptr<HostPool> open(uint64_t generation = 1) {
    auto pool = HostPool::open(fd.get(), shape, generation);
    REQUIRE(pool.status().message() == "");
    return std::move(*pool);
  }
  std::unique_ptr<HostPool> open_reader() {
    HostPoolShape own = shape;
    own.n_pages.clear();
    auto pool = HostPool::open_reader(fd.get(), own);
    REQUIRE(pool.status().message() == "");
    return std::move(*pool);
  }
  // A byte of the file, behind everybody's back.
  void flip(const std::vector<uint8_t>& pattern, size_t offset) {
    auto size = static_cast<size_t>(*HostPool::bytes_needed(shape));
    auto* p = static_cast<uint8_t*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    uint8_t* at = std::search(p, p + size, pattern.begin(), pattern.end());
    REQUIRE(at != p + size);
    at[offset] ^= 1;
    munmap(p, size);
  }
};

const std::vector<int32_t> kTokens = {11, 12, 13, 14};

void seal(HostPool* pool, int group, PageId page, uint8_t fill, uint64_t serial = 1, uint64_t parent = 0, int index = 0) {
  pool->on_taken(group, page);
  std::memset(pool->page_memory(group, page), fill, static_cast<size_t>(pool->shape().page_bytes[static_cast<size_t>(group)]));
  pool->on_sealed(group, page, {7, serial, parent, index, kTokens});
}

std::vector<uint8_t> bytes_of(const void* data, size_t n) {
  auto* p = static_cast<const uint8_t*>(data);
  return {p, p + n};
}

}  // namespace

TEST_CASE("sealed pages outlive their owner, others do not") {
  Memory memory;
  {
    auto pool = memory.open(1);
    CHECK_FALSE(pool->is_committed());
    std::atomic<bool> stop{false};
    REQUIRE(pool->touch(2, stop).ok());
    seal(pool.get(), 0, 3, 0xa5, 5, 4, 2);
    seal(pool.get(), 1, 2, 0x5a);
    seal(pool.get(), 0, 1, 0x11);
    pool->on_unsealed(0, 1);
    seal(pool.get(), 0, 2, 0x22);
    pool->on_freed(0, 2);
    pool->on_taken(0, 5);
  }
  auto pool = memory.open(2);
  CHECK(pool->is_committed());
  std::vector<SealedPage> sealed = pool->sealed_pages();
  REQUIRE(sealed.size() == 2);
  CHECK((sealed[0].group == 0 && sealed[0].page == 3 && sealed[0].key == 7 && sealed[0].serial == 5));
  CHECK((sealed[0].parent == 4 && sealed[0].index == 2 && sealed[0].tokens == kTokens));
  CHECK((sealed[1].group == 1 && sealed[1].page == 2));
  CHECK(pool->verify(0, 3));
  CHECK(pool->verify(1, 2));
  CHECK(pool->page_memory(0, 3)[63] == 0xa5);
}

TEST_CASE("memory that cannot be committed is said") {
  Memory memory;
  auto pool = memory.open();
  REQUIRE(ftruncate(memory.fd.get(), 4096) == 0);
  Status status = pool->touch(GENERATE(1, 3), std::atomic<bool>{false});
  CHECK(status.code() == StatusCode::kExhausted);
  CHECK(status.message().find("no memory for the host pool: ") == 0);
  CHECK_FALSE(pool->is_committed());
}

TEST_CASE("another model's, build's or shape's pages are wiped") {
  Memory memory;
  seal(memory.open(1).get(), 0, 3, 0xa5);
  SECTION("fingerprint") { memory.shape.fingerprint = 43; }
  SECTION("page size") { memory.shape.page_size = 8; }
  SECTION("page bytes") { memory.shape.page_bytes[1] = 64; }
  SECTION("counts") { memory.shape.n_pages[1] = 3; }
  CHECK(memory.open(2)->sealed_pages().empty());
}

TEST_CASE("a damaged table entry or content is never used") {
  Memory memory;
  seal(memory.open(1).get(), 0, 3, 0xa5);
  std::vector<uint8_t> content(64, 0xa5);
  SECTION("content") {
    memory.flip(content, 20);
    auto pool = memory.open(2);
    REQUIRE(pool->sealed_pages().size() == 1);
    CHECK_FALSE(pool->verify(0, 3));
    uint8_t copy[64];
    Status status = memory.open_reader()->copy_lent(2, 0, 3, pool->serial(0, 3), copy);
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK(status.message().find("checksum") != std::string::npos);
  }
  SECTION("token ids") {
    memory.flip(bytes_of(kTokens.data(), 16), 4);
    auto pool = memory.open(2);
    CHECK(pool->sealed_pages().empty());
    CHECK_FALSE(pool->verify(0, 3));
  }
  SECTION("token ids that no model has, with a checksum that fits") {
    auto pool = memory.open(2);
    std::vector<int32_t> foreign = {1, 2, 3, 100};
    pool->on_sealed(0, 3, {7, 1, 0, 0, foreign});
    CHECK(pool->sealed_pages().empty());
  }
}

TEST_CASE("lent pages: each way in which a loan can be no good") {
  Memory memory;
  auto owner = memory.open(5);
  seal(owner.get(), 0, 3, 0xa5);
  owner->on_taken(0, 4);
  std::memset(owner->page_memory(0, 4), 0x77, 64);
  auto reader = memory.open_reader();
  uint8_t copy[64] = {};
  auto error = [&](uint64_t generation, int group, PageId page, uint32_t serial) {
    return reader->copy_lent(generation, group, page, serial, copy).message();
  };
  uint32_t serial = owner->serial(0, 3);
  REQUIRE(error(5, 0, 3, serial) == "");
  CHECK(copy[63] == 0xa5);
  REQUIRE(error(5, 0, 4, owner->serial(0, 4)) == "");  // a partial page is not sealed
  CHECK(copy[0] == 0x77);
  CHECK(error(5, 0, 8, serial).find("index must be 0 to 7, got 8") != std::string::npos);
  CHECK(error(5, 0, -1, serial).find("index must be 0 to 7, got -1") != std::string::npos);
  CHECK(error(5, 1, 4, serial).find("index must be 0 to 3, got 4") != std::string::npos);
  CHECK(error(5, 2, 0, serial).find("group must be 0 to 1, got 2") != std::string::npos);
  CHECK(error(5, -1, 0, serial).find("group must be 0 to 1, got -1") != std::string::npos);
  CHECK(error(4, 0, 3, serial).find("owner, generation 4, is gone; the pool is generation 5's") != std::string::npos);
  CHECK(error(5, 0, 3, serial + 1).find("lent as number") != std::string::npos);
  CHECK(error(5, 0, 6, 0).find("was freed") != std::string::npos);
  owner->on_freed(0, 3);
  CHECK(error(5, 0, 3, serial).find("was freed") != std::string::npos);
  owner->on_taken(0, 3);  // by somebody else
  CHECK(error(5, 0, 3, serial).find("it is number") != std::string::npos);
  owner.reset();
  memory.open(6);
  CHECK(error(5, 0, 4, 1).find("is gone") != std::string::npos);
}

TEST_CASE("a reader refuses what is not this model's pool") {
  Memory memory;
  auto reader_error = [&](const std::function<void(HostPoolShape*)>& change) {
    HostPoolShape own = memory.shape;
    own.n_pages.clear();
    change(&own);
    return HostPool::open_reader(memory.fd.get(), own).status().message();
  };
  CHECK(reader_error([](auto*) {}).find("no pool is there") != std::string::npos);
  memory.open(1);
  CHECK(reader_error([](auto*) {}) == "");
  CHECK(reader_error([](auto* s) { s->fingerprint = 1; }).find("another model") != std::string::npos);
  CHECK(reader_error([](auto* s) { s->page_size = 8; }).find("pages of 4 tokens") != std::string::npos);
  CHECK(reader_error([](auto* s) { s->page_bytes = {64}; }).find("2 KV groups") != std::string::npos);
  CHECK(reader_error([](auto* s) { s->page_bytes[1] = 65; }).find("pages of 128 bytes") != std::string::npos);
  UniqueFd small(memfd_create("small", MFD_CLOEXEC));
  REQUIRE(ftruncate(small.get(), 100) == 0);
  CHECK(HostPool::open_reader(small.get(), memory.shape).status().message().find("100 bytes are there") != std::string::npos);
  CHECK(HostPool::open(small.get(), memory.shape, 1).status().message().find("100 bytes are there") != std::string::npos);
}

}  // namespace tandem
