// A file of packed weights is mapped where every byte of it fits, and is a reason to pack anew where one does not.
#include "cpu/pack_cache.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "cpu/packed_model.h"
#include "tests/cpu/tiny_model.h"

namespace tandem {
namespace {

const std::atomic<bool> kGoOn{false};

struct TempFile {
  std::string path;
  TempFile() {
    char name[] = "/tmp/tandem_pack_XXXXXX";
    close(mkstemp(name));
    path = name;
  }
  ~TempFile() { unlink(path.c_str()); }
  UniqueFd open_for(int flags) const { return UniqueFd(open(path.c_str(), flags | O_CLOEXEC)); }
  size_t size() const {
    struct stat st{};
    stat(path.c_str(), &st);
    return static_cast<size_t>(st.st_size);
  }
  void flip(size_t at) const {
    const UniqueFd fd = open_for(O_RDWR);
    uint8_t b = 0;
    REQUIRE(pread(fd.get(), &b, 1, static_cast<off_t>(at)) == 1);
    b ^= 0x10;
    REQUIRE(pwrite(fd.get(), &b, 1, static_cast<off_t>(at)) == 1);
  }
};

struct Start {
  std::unique_ptr<PackedModel> packed;
  bool is_hit = false, has_kept = false;
  std::string reason;
};

// Loads as a worker does: from `file`, then stores into `into`, where there is something to store.
Start start(const TinyModel& model, const KernelTable& kernels, const std::string& stamp, const TempFile* file,
            const TempFile* into, Status* stored = nullptr, bool is_trusted = false) {
  OmpTeam team(2);
  PackCache cache({file ? file->open_for(O_RDONLY) : UniqueFd(), into ? into->open_for(O_RDWR) : UniqueFd(), is_trusted,
                   false},
                  stamp);
  PackOptions options;
  options.cache = &cache;
  auto packed = PackedModel::pack(model.weights, kernels, &team, options);
  REQUIRE(packed.ok());
  Start s{std::move(*packed), cache.is_hit(), cache.has_kept(), cache.miss_reason()};
  if (s.has_kept) {
    const Status status = cache.store(kGoOn);
    if (stored) *stored = status;
    else CHECK(status.ok());
    CHECK_FALSE(cache.can_store());
  }
  return s;
}

bool is_same(const KernelTable& kernels, const PackedMatrix& a, const PackedMatrix& b) {
  return a.type == b.type && a.n_rows == b.n_rows && a.n_cols == b.n_cols &&
         std::memcmp(a.data, b.data, kernels.packed_bytes(a.type, a.n_rows, a.n_cols)) == 0;
}

void check_same(const KernelTable& kernels, const PackedModel& a, const PackedModel& b) {
  CHECK(is_same(kernels, a.token_embedding, b.token_embedding));
  CHECK(is_same(kernels, a.output, b.output));
  for (size_t i = 0; i < a.layers.size(); ++i) {
    for (auto m : {&PackedLayer::wq, &PackedLayer::wk, &PackedLayer::wv, &PackedLayer::wo, &PackedLayer::w_gate,
                   &PackedLayer::w_up, &PackedLayer::w_down})
      CHECK(is_same(kernels, a.layers[i].*m, b.layers[i].*m));
  }
}

}  // namespace

TEST_CASE("what was stored is mapped at the next start, for every column") {
  for (const KernelTable* kernels : runnable_columns()) {
    for (TinyKind kind : {TinyKind::kPlain, TinyKind::kVaried}) {
      INFO(kernels->isa);
      const TinyModel model = make_tiny_model(kind, GgmlType::kQ4_0, 3);
      TempFile file;
      const Start first = start(model, *kernels, "stamp", nullptr, &file);
      CHECK((!first.is_hit && first.has_kept && !first.reason.empty()));
      const Start second = start(model, *kernels, "stamp", &file, nullptr);
      CHECK((second.is_hit && !second.has_kept));
      check_same(*kernels, *first.packed, *second.packed);
      // Another stamp (a copied model) is still the same model: its matrices say so.
      CHECK(start(model, *kernels, "moved", &file, nullptr).is_hit);
    }
  }
}

TEST_CASE("a file of another model, ISA or version is not used") {
  const KernelTable& ref = kernel_table_ref();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  TempFile file;
  start(model, ref, "stamp", nullptr, &file);
  const auto missed = [&](const TinyModel& m, const KernelTable& k, const char* stamp, const char* why) {
    const Start s = start(m, k, stamp, &file, nullptr);
    INFO(s.reason);
    CHECK_FALSE(s.is_hit);
    CHECK(s.reason.find(why) != std::string::npos);
    OmpTeam team(1);
    check_same(k, *s.packed, **PackedModel::pack(m.weights, k, &team, {}));
  };
  missed(make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 4), ref, "other", "another model");
  missed(make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 3), ref, "other", "another shape");
  missed(make_tiny_model(TinyKind::kPlain, GgmlType::kQ4_0, 3), ref, "other", "another shape");
  KernelTable renamed = ref;
  renamed.isa = "later";
  missed(model, renamed, "stamp", "it is for ref");
  file.flip(12);  // pack_version
  missed(model, ref, "stamp", "version");
}

TEST_CASE("every flipped bit and every cut of the file is found, and the model is packed all the same") {
  const KernelTable& ref = kernel_table_ref();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  TempFile file;
  const Start first = start(model, ref, "stamp", nullptr, &file);
  const size_t size = file.size();
  constexpr size_t kData = 2u << 20;
  constexpr size_t kHeaderAndTable = 168 + 15 * 88;  // 2 layers x 7, and the embedding
  for (size_t at = 0; at < kHeaderAndTable; at += 5) {
    INFO(at);
    file.flip(at);
    const Start s = start(model, ref, "stamp", &file, nullptr);
    CHECK_FALSE(s.is_hit);
    check_same(ref, *first.packed, *s.packed);
    file.flip(at);
  }
  for (size_t at : {kData, kData + 100000, size - 64}) {
    INFO(at);
    file.flip(at);
    const Start s = start(model, ref, "stamp", &file, nullptr);
    CHECK_FALSE(s.is_hit);
    CHECK(s.reason.find("checksum of") != std::string::npos);
    check_same(ref, *first.packed, *s.packed);
    file.flip(at);
  }
  CHECK(start(model, ref, "stamp", &file, nullptr).is_hit);
  for (size_t cut : {size - 1, size / 2, size_t{4096}, size_t{200}, size_t{112}, size_t{111}, size_t{1}, size_t{0}}) {
    INFO(cut);
    REQUIRE(truncate(file.path.c_str(), static_cast<off_t>(cut)) == 0);
    const Start s = start(model, ref, "stamp", &file, nullptr);
    CHECK_FALSE(s.is_hit);
    check_same(ref, *first.packed, *s.packed);
  }
}

TEST_CASE("a file taken on trust is checked behind the service") {
  const KernelTable& ref = kernel_table_ref();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  TempFile file;
  start(model, ref, "stamp", nullptr, &file);
  const auto load = [&](OmpTeam* team, PackCache* cache) {
    PackOptions options;
    options.cache = cache;
    auto packed = PackedModel::pack(model.weights, ref, team, options);
    REQUIRE(packed.ok());
    CHECK(cache->is_hit());
    return std::move(*packed);
  };
  OmpTeam team(2);
  PackCache whole({file.open_for(O_RDONLY), UniqueFd(), true, false}, "stamp");
  const auto packed = load(&team, &whole);
  CHECK_FALSE(whole.is_verified());
  CHECK(whole.verify(std::atomic<bool>{true}).code() == StatusCode::kCancelled);
  CHECK(whole.verify(kGoOn).ok());
  CHECK(whole.is_verified());

  file.flip((2u << 20) + 5000);
  PackCache damaged({file.open_for(O_RDONLY), UniqueFd(), true, false}, "stamp");
  const auto wrong = load(&team, &damaged);
  const Status status = damaged.verify(kGoOn);
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(status.message().find("token_embedding") != std::string::npos);
  CHECK_FALSE(damaged.is_verified());

  file.flip(100);  // its header is never taken on trust
  CHECK_FALSE(start(model, ref, "stamp", &file, nullptr, nullptr, true).is_hit);
}

TEST_CASE("a copied model's stamp is stored once, and then its matrices are not read any more") {
  const KernelTable& ref = kernel_table_ref();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  TempFile file, again;
  start(model, ref, "stamp", nullptr, &file);
  const Start moved = start(model, ref, "moved", &file, &again);
  CHECK((moved.is_hit && moved.has_kept));
  const Start third = start(model, ref, "moved", &again, &file);
  CHECK((third.is_hit && !third.has_kept));
  check_same(ref, *moved.packed, *third.packed);
}

TEST_CASE("what was stored takes the place of the packing thread's copy while others read it") {
  const KernelTable& ref = kernel_table_ref();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  TempFile file;
  OmpTeam team(2);
  PackCache cache({UniqueFd(), file.open_for(O_RDWR), false, true}, "stamp");
  PackOptions options;
  options.cache = &cache;
  auto packed = PackedModel::pack(model.weights, ref, &team, options);
  REQUIRE(packed.ok());
  const PackedMatrix& m = (*packed)->token_embedding;
  const size_t size = ref.packed_bytes(m.type, m.n_rows, m.n_cols);
  const std::vector<uint8_t> copy(m.data, m.data + size);
  std::atomic<bool> is_done{false}, is_same{true};
  std::thread reader([&] {
    while (!is_done) {
      if (std::memcmp(m.data, copy.data(), size) != 0) is_same = false;
    }
  });
  CHECK(cache.store(kGoOn).ok());
  is_done = true;
  reader.join();
  CHECK(is_same);
  CHECK(std::memcmp(m.data, copy.data(), size) == 0);
  std::ifstream maps("/proc/self/maps");
  const std::string text((std::istreambuf_iterator<char>(maps)), {});
  CHECK(text.find(file.path) != std::string::npos);  // is_shared: also in small pages
}

TEST_CASE("a private copy takes the place of mapped memory while others read it") {
  TempFile file;
  constexpr size_t kSize = (37u << 20) + 5000;
  std::vector<uint8_t> bytes(kSize);
  for (size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 4096);
  const UniqueFd fd = file.open_for(O_RDWR);
  REQUIRE(write(fd.get(), bytes.data(), kSize) == static_cast<ssize_t>(kSize));
  auto mapped = Arena::map_file(fd.get(), kSize);
  REQUIRE(mapped.ok());
  std::atomic<bool> is_done{false}, is_same{true};
  std::thread reader([&] {
    while (!is_done) {
      if (std::memcmp(mapped->data(), bytes.data(), kSize) != 0) is_same = false;
    }
  });
  CHECK(Arena::replace_by_copy(mapped->data(), kSize, std::atomic<bool>{true}).code() == StatusCode::kCancelled);
  CHECK(Arena::replace_by_copy(mapped->data(), kSize, kGoOn).ok());
  is_done = true;
  reader.join();
  CHECK(is_same);
  const uint8_t changed = static_cast<uint8_t>(bytes[1000] ^ 1);
  REQUIRE(pwrite(fd.get(), &changed, 1, 1000) == 1);  // the file is not looked at any more
  CHECK(std::memcmp(mapped->data(), bytes.data(), kSize) == 0);
}

TEST_CASE("a full disk is an error of store(), the packed weights stay") {
  const KernelTable& ref = kernel_table_ref();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  TempFile file;
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{50000, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  Status stored;
  const Start s = start(model, ref, "stamp", nullptr, &file, &stored);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(stored.code() == StatusCode::kExhausted);
  OmpTeam team(1);
  check_same(ref, *s.packed, **PackedModel::pack(model.weights, ref, &team, {}));
  CHECK_FALSE(start(model, ref, "stamp", &file, nullptr).is_hit);  // the torn file, if it ever got its name
}

TEST_CASE("the measured speed of both weight sets is stored with the weights, and anew where it changes") {
  const KernelTable& ref = kernel_table_ref();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  OmpTeam team(1);
  TempFile first, second;
  const auto load = [&](const TempFile* file, const TempFile* into, SetFigures expected, const SetFigures* measured) {
    PackCache cache({file ? file->open_for(O_RDONLY) : UniqueFd(), into ? into->open_for(O_RDWR) : UniqueFd(), false, false}, "stamp");
    PackOptions options;
    options.cache = &cache;
    auto packed = PackedModel::pack(model.weights, ref, &team, options);
    REQUIRE(packed.ok());
    CHECK(cache.is_hit() == (file != nullptr));
    CHECK(cache.figures() == expected);
    if (measured) cache.set_figures(ref.isa, *measured);
    CHECK(cache.has_kept() == (into != nullptr));
    if (cache.has_kept()) CHECK(cache.store(kGoOn).ok());
  };
  const SetFigures slow{9, 5, 20, 25, 1}, fast{3, 2, 20, 26, 4};
  load(nullptr, &first, {}, &slow);
  load(&first, nullptr, slow, nullptr);
  load(&first, &second, slow, &fast);
  load(&second, nullptr, fast, nullptr);
  SetFigures of_a_file = fast;  // also where another file's lean set happens to be as fast
  of_a_file.lean_file = PackCache({}, "lean").file_id();
  CHECK((of_a_file != fast && of_a_file.lean_file != PackCache({}, "lean, changed").file_id()));
  load(&second, &first, fast, &of_a_file);
  load(&first, nullptr, of_a_file, nullptr);
}

TEST_CASE("nested and plain packed weights do not take each other's files") {
  const KernelTable& ref = kernel_table_ref();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  OmpTeam team(1);
  TempFile file;
  start(model, ref, "stamp", nullptr, &file);
  PackCache cache({file.open_for(O_RDONLY), UniqueFd(), false, false}, "stamp");
  PackOptions options;
  options.cache = &cache;
  options.has_lean_set = false;
  REQUIRE(PackedModel::pack(model.weights, ref, &team, options).ok());
  CHECK_FALSE(cache.is_hit());
  CHECK(cache.miss_reason().find("another shape") != std::string::npos);
}

TEST_CASE("stop ends store() early") {
  OmpTeam team(1);
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  TempFile file;
  PackCache cache({UniqueFd(), file.open_for(O_RDWR), false, false}, "stamp");
  PackOptions options;
  options.cache = &cache;
  REQUIRE(PackedModel::pack(model.weights, kernel_table_ref(), &team, options).ok());
  const std::atomic<bool> stop{true};
  CHECK(cache.store(stop).code() == StatusCode::kCancelled);
  CHECK(file.size() == 0);
}

}  // namespace tandem
