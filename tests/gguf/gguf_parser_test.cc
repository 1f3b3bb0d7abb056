// Foreign bytes: each malformed file gets a message that names file, field, found and allowed, and
// none crashes (field cases C-38 and C-39). Run under ASan this also shows that nothing is read
// past the end.
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <random>

#include "gguf/gguf_reader.h"
#include "tests/gguf/gguf_writer.h"

using namespace tandem;
using Catch::Matchers::Contains;
using tandem::testing::GgufWriter;

namespace {

// The bytes sit in an allocation of exactly their size, so that ASan sees one byte too far.
struct Parsed {
  std::unique_ptr<uint8_t[]> bytes;
  Result<std::unique_ptr<GgufModel>> model;
  explicit Parsed(const std::string& s)
      : bytes(new uint8_t[s.size()]), model(internal_error("not parsed")) {
    if (!s.empty()) std::memcpy(bytes.get(), s.data(), s.size());
    model = GgufModel::parse(bytes.get(), s.size(), "m.gguf");
  }
};

Status error_of(const std::string& bytes) {
  Parsed p(bytes);
  REQUIRE_FALSE(p.model.ok());
  CHECK_THAT(p.model.status().message(), Catch::Matchers::StartsWith("m.gguf: "));
  return p.model.status();
}

GgufWriter small() {
  GgufWriter w;
  w.text("general.architecture", "llama")
      .u32("llama.block_count", 2)
      .f32_tensor("a", {4, 3})
      .f32_tensor("b", {5});
  return w;
}

std::string text_value(const std::string& s) {
  std::string out;
  GgufWriter::put_text(&out, s);
  return out;
}

}  // namespace

TEST_CASE("every metadata type and a tensor come back as written, in versions 2 and 3") {
  for (uint32_t version : {2u, 3u}) {
    GgufWriter w;
    w.version = version;
    w.u8("u8", 200).number<int8_t>("i8", 1, -3).u16("u16", 60000).number<int16_t>("i16", 3, -300);
    w.u32("u32", 4000000000u)
        .i32("i32", -70000)
        .f32("f32", 1.5f)
        .boolean("bool", true)
        .text("s", "hé\0x");
    w.u64("u64", 1ull << 40)
        .number<int64_t>("i64", 11, -(1ll << 40))
        .number<double>("f64", 12, 2.25);
    w.texts("names", {"a", "", "ccc"})
        .numbers<int16_t>("shorts", 3, {1, -2, 3})
        .numbers<float>("floats", 6, {0.5f});
    w.numbers<uint8_t>("bools", 7, {0, 1}).numbers<uint32_t>("none", 4, {});
    w.f32_tensor("t", {4, 3, 2}, 7.0f);
    Parsed p(w.bytes());
    REQUIRE(p.model.status().message() == "");
    GgufModel& m = **p.model;
    CHECK(m.version() == version);
    CHECK(*m.get_int("u8") == 200);
    CHECK(*m.get_int("i8") == -3);
    CHECK(*m.get_int("u16") == 60000);
    CHECK(*m.get_int("i16") == -300);
    CHECK(*m.get_int("u32") == 4000000000);
    CHECK(*m.get_int("i32") == -70000);
    CHECK(*m.get_float("f32") == 1.5);
    CHECK(*m.get_float("u32") == 4e9);
    CHECK(*m.get_bool("bool"));
    CHECK(*m.get_string("s") == std::string("hé"));
    CHECK(*m.get_int("u64") == 1ll << 40);
    CHECK(*m.get_int("i64") == -(1ll << 40));
    CHECK(*m.get_float("f64") == 2.25);
    CHECK((*m.get_array("names"))->strings == std::vector<std::string_view>{"a", "", "ccc"});
    CHECK((*m.get_array("shorts"))->integer(1) == -2);
    CHECK((*m.get_array("floats"))->number(0) == 0.5);
    CHECK((*m.get_array("bools"))->integer(1) == 1);
    CHECK((*m.get_array("none"))->count == 0);
    const GgufTensor* t = m.find_tensor("t");
    REQUIRE(t != nullptr);
    CHECK(t->n_dims == 3);
    CHECK(t->dims[0] == 4);
    CHECK(t->dims[3] == 1);
    CHECK(t->n_bytes == 96);
    float last = 0;
    std::memcpy(&last, t->data + 92, 4);
    CHECK(last == 7.0f);
  }
}

TEST_CASE("a look-up of the wrong kind names key, wanted and found") {
  Parsed p(small().u64("big", UINT64_MAX).bytes());
  GgufModel& m = **p.model;
  CHECK(m.get_int("nope").status().code() == StatusCode::kNotFound);
  CHECK_THAT(m.get_int("nope").status().message(),
             Contains("m.gguf: metadata key \"nope\" is missing"));
  CHECK_THAT(m.get_int("general.architecture").status().message(),
             Contains("\"general.architecture\" must be an integer, found string"));
  CHECK_THAT(m.get_string("llama.block_count").status().message(),
             Contains("must be a string, found uint32"));
  CHECK_THAT(m.get_int("big").status().message(),
             Contains("below 2^63, found 18446744073709551615"));
  CHECK_FALSE(m.get_array("llama.block_count").ok());
  CHECK_FALSE(m.get_bool("llama.block_count").ok());
  CHECK_FALSE(m.get_float("general.architecture").ok());
}

TEST_CASE("what is not GGUF is told apart") {
  CHECK_THAT(error_of("").message(), Contains("empty (0 bytes)"));
  CHECK_THAT(error_of("GG").message(), Contains("magic must be \"GGUF\", found \"GG\""));
  CHECK_THAT(error_of("<!DOCTYPE html><html><body>404</body></html>").message(),
             Contains("web page"));
  CHECK_THAT(error_of("\r\n  <html></html>").message(), Contains("web page"));
  CHECK_THAT(error_of("version https://git-lfs.github.com/spec/v1\noid").message(),
             Contains("Git LFS"));
  CHECK_THAT(error_of(std::string("PK\3\4aaaaaaaaaaaaaaaaaaaaaaaa")).message(),
             Contains("zip archive"));
  CHECK_THAT(error_of(std::string("\1\2\3\4aaaaaaaaaaaaaaaaaaaaaaaaaa")).message(),
             Contains("\\x01\\x02\\x03\\x04"));
  std::string bytes = small().bytes();
  std::string swapped = bytes;
  std::swap(swapped[0], swapped[3]), std::swap(swapped[1], swapped[2]);
  CHECK_THAT(error_of(swapped).message(), Contains("big-endian"));
  swapped = bytes;
  std::swap(swapped[4], swapped[7]);
  CHECK_THAT(error_of(swapped).message(), Contains("big-endian"));
  for (uint32_t version : {0u, 1u, 4u}) {
    GgufWriter w = small();
    w.version = version;
    CHECK_THAT(error_of(w.bytes()).message(),
               Contains("version must be 2 or 3, found " + std::to_string(version)));
  }
}

TEST_CASE("C-39: a file cut anywhere is called truncated, with have and need") {
  std::string bytes = small().texts("t", {"aa", "bb"}).numbers<float>("f", 6, {1, 2, 3}).bytes();
  REQUIRE(Parsed(bytes).model.ok());
  for (size_t n = 4; n < bytes.size(); ++n) {
    Status s = error_of(bytes.substr(0, n));
    INFO("cut at " << n << ": " << s.message());
    REQUIRE(s.code() == StatusCode::kDataLoss);
    REQUIRE_THAT(s.message(), Contains("truncated"));
    REQUIRE_THAT(s.message(), Contains(std::to_string(n)));
  }
  Status s = error_of(bytes.substr(0, bytes.size() - 1));
  CHECK_THAT(s.message(), Contains("have " + std::to_string(bytes.size() - 1) + " bytes, need " +
                                   std::to_string(bytes.size()) + " bytes"));
}

TEST_CASE("C-38: zero dimensions, empty and double names, bad types") {
  CHECK_THAT(error_of(small().f32_tensor("z", {4, 0}).bytes()).message(),
             Contains("tensor \"z\": dimension 1 must be at least 1, found 0"));
  CHECK_THAT(error_of(small().f32_tensor("", {4}).bytes()).message(),
             Contains("from 1 to 255, found 0"));
  CHECK_THAT(error_of(small().f32_tensor(std::string(300, 'n'), {4}).bytes()).message(),
             Contains("found 300"));
  CHECK_THAT(error_of(small().f32_tensor("a", {4}).bytes()).message(),
             Contains("tensor \"a\" is there twice"));
  CHECK_THAT(error_of(small().u32("", 1).bytes()).message(),
             Contains("length must be from 1 to 65535, found 0"));
  CHECK_THAT(error_of(small().u32("llama.block_count", 1).bytes()).message(),
             Contains("metadata key \"llama.block_count\" is there twice"));
  CHECK_THAT(error_of(small().raw("k", 13, "xxxxxxxx").bytes()).message(),
             Contains("type id must be from 0 to 12, found 13"));
  CHECK_THAT(error_of(small().raw("k", 7, std::string(1, '\2')).bytes()).message(),
             Contains("bool must be 0 or 1, found 2"));
  std::string nested;
  GgufWriter::put<uint32_t>(&nested, 9);
  GgufWriter::put<uint64_t>(&nested, 1);
  CHECK_THAT(error_of(small().raw("k", 9, nested + std::string(32, '\0')).bytes()).message(),
             Contains("arrays of arrays"));
  nested[0] = 77;
  CHECK_THAT(error_of(small().raw("k", 9, nested + std::string(32, '\0')).bytes()).message(),
             Contains("element type id must be from 0 to 12, found 77"));
}

TEST_CASE("counts, lengths, shapes and offsets that overflow or lie") {
  GgufWriter w = small();
  w.n_keys_claimed = 65537;
  CHECK_THAT(error_of(w.bytes()).message(), Contains("at most 65536, found 65537"));
  w.n_keys_claimed = 60000;
  CHECK_THAT(error_of(w.bytes()).message(), Contains("60000 metadata keys needs 840000 bytes"));
  w = small();
  w.n_tensors_claimed = INT64_MAX;
  CHECK_THAT(error_of(w.bytes()).message(), Contains("number of tensors must be at most 65536"));
  std::string huge;
  GgufWriter::put<uint64_t>(&huge, UINT64_MAX);
  CHECK_THAT(error_of(small().raw("k", 8, huge).bytes()).message(),
             Contains("needs 18446744073709551615 bytes"));
  for (uint32_t element : {0u, 4u, 8u, 10u}) {
    std::string array;
    GgufWriter::put<uint32_t>(&array, element);
    GgufWriter::put<uint64_t>(&array, 0x2000000000000001ull);
    CHECK(error_of(small().raw("k", 9, array).bytes()).code() == StatusCode::kDataLoss);
  }
  CHECK_THAT(
      error_of(small().tensor({"x", {1ull << 40, 1ull << 40}, 0, "", -1, -1}).bytes()).message(),
      Contains("below 2^63"));
  CHECK_THAT(error_of(small().tensor({"x", {UINT64_MAX}, 0, "", -1, -1}).bytes()).message(),
             Contains("below 2^63"));
  CHECK_THAT(error_of(small().tensor({"x", {1ull << 62, 1}, 0, "", -1, -1}).bytes()).message(),
             Contains("more than 2^64 bytes"));
  CHECK_THAT(error_of(small().tensor({"x", {4}, 0, "0123456789abcdef", 33, -1}).bytes()).message(),
             Contains("offset must be a multiple of the alignment 32, found 33"));
  CHECK_THAT(error_of(small().tensor({"x", {4}, 0, "0123456789abcdef", INT64_MAX - 31, -1}).bytes())
                 .message(),
             Contains("truncated"));
  CHECK_THAT(error_of(small().tensor({"x", {4}, 0, "0123456789abcdef", 0, -1}).bytes()).message(),
             Contains("begins inside the data of tensor"));
  for (int64_t n : {0, 5, 255})
    CHECK_THAT(
        error_of(small().tensor({"x", {4, 1, 1, 1, 1}, 0, "0123456789abcdef", -1, n}).bytes())
            .message(),
        Contains("dimensions must be from 1 to 4, found " + std::to_string(n)));
}

TEST_CASE("tensor types are named: unknown ones, known ones that are not served, odd rows") {
  CHECK_THAT(
      error_of(small().tensor({"x", {256}, 16, std::string(66, 'x'), -1, -1}).bytes()).message(),
      Contains("tensor \"x\": type IQ2_XXS (id 16) is not served; allowed: F32, F16"));
  CHECK_THAT(
      error_of(small().tensor({"x", {256}, 999, std::string(66, 'x'), -1, -1}).bytes()).message(),
      Contains("unknown id 999"));
  // A packed form of our own is no type of files.
  CHECK_THAT(
      error_of(small().tensor({"x", {256}, 0x10000, std::string(272, 'x'), -1, -1}).bytes()).message(),
      Contains("unknown id 65536"));
  CHECK_THAT(
      error_of(small().tensor({"x", {48}, 8, std::string(66, 'x'), -1, -1}).bytes()).message(),
      Contains("dimension 0 must be a multiple of 32 for type Q8_0, found 48"));
}

TEST_CASE("alignment is the file's own") {
  GgufWriter w = small();
  w.alignment = 64;
  w.u32("general.alignment", 64);
  REQUIRE(Parsed(w.bytes()).model.ok());
  for (uint32_t bad : {0u, 4u, 24u, 131072u})
    CHECK_THAT(error_of(small().u32("general.alignment", bad).bytes()).message(),
               Contains("power of two from 8 to 65536, found " + std::to_string(bad)));
  CHECK_THAT(error_of(small().text("general.alignment", "32").bytes()).message(),
             Contains("must be uint32, found string"));
}

TEST_CASE("bytes of a hostile name never reach a message raw") {
  Status s = error_of(small().raw("k\n\x1b[31m\"", 99, text_value("")).bytes());
  CHECK_THAT(s.message(), Contains("k\\x0a\\x1b[31m\\x22"));
}

TEST_CASE("a flipped byte or a random cut never crashes the parser") {
  std::string good = small().texts("t", {"aa", "bb"}).numbers<float>("f", 6, {1, 2, 3}).bytes();
  std::mt19937 random(7);
  size_t n_refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string s = good;
    for (unsigned k = 0; k <= random() % 3; ++k)
      s[random() % s.size()] = static_cast<char>(random());
    if (random() % 4 == 0) s.resize(random() % s.size());
    n_refused += !Parsed(s).model.ok();
  }
  CHECK(n_refused > 5000);
}

TEST_CASE("a vocabulary of 262144 strings is read in milliseconds") {
  std::vector<std::string> tokens;
  for (int i = 0; i < 262144; ++i) tokens.push_back("token" + std::to_string(i));
  std::string bytes = small().texts("tokenizer.ggml.tokens", tokens).bytes();
  auto begin = std::chrono::steady_clock::now();
  Parsed p(bytes);
  double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  REQUIRE(p.model.ok());
  CHECK((*(*p.model)->get_array("tokenizer.ggml.tokens"))->strings[262143] == "token262143");
  CHECK(ms < 1000);  // about 10 ms; the bound only catches something quadratic
}
