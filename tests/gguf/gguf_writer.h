// Writes GGUF bytes for tests, well formed or deliberately not: every field can be bent after the
// fact. Knows nothing of src/gguf, so that reader and writer can not share a mistake.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace tandem::testing {

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;
  // Lies about the counts in the header, if not -1.
  int64_t n_keys_claimed = -1, n_tensors_claimed = -1;

  template <typename T>
  static void put(std::string* out, T value) {
    out->append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void put_text(std::string* out, const std::string& text) {
    put<uint64_t>(out, text.size());
    *out += text;
  }

  // A key with its type id and the raw bytes of its value.
  GgufWriter& raw(const std::string& key, uint32_t type, const std::string& bytes) {
    put_text(&keys_, key);
    put<uint32_t>(&keys_, type);
    keys_ += bytes;
    ++n_keys_;
    return *this;
  }
  template <typename T>
  GgufWriter& number(const std::string& key, uint32_t type, T value) {
    std::string bytes;
    put<T>(&bytes, value);
    return raw(key, type, bytes);
  }
  GgufWriter& u8(const std::string& key, uint8_t v) { return number(key, 0, v); }
  GgufWriter& u16(const std::string& key, uint16_t v) { return number(key, 2, v); }
  GgufWriter& u32(const std::string& key, uint32_t v) { return number(key, 4, v); }
  GgufWriter& i32(const std::string& key, int32_t v) { return number(key, 5, v); }
  GgufWriter& f32(const std::string& key, float v) { return number(key, 6, v); }
  GgufWriter& boolean(const std::string& key, bool v) {
    return number(key, 7, static_cast<uint8_t>(v));
  }
  GgufWriter& u64(const std::string& key, uint64_t v) { return number(key, 10, v); }
  GgufWriter& text(const std::string& key, const std::string& v) {
    std::string bytes;
    put_text(&bytes, v);
    return raw(key, 8, bytes);
  }
  GgufWriter& texts(const std::string& key, const std::vector<std::string>& v) {
    std::string bytes;
    put<uint32_t>(&bytes, 8);
    put<uint64_t>(&bytes, v.size());
    for (const auto& s : v) put_text(&bytes, s);
    return raw(key, 9, bytes);
  }
  template <typename T>
  GgufWriter& numbers(const std::string& key, uint32_t element_type, const std::vector<T>& v) {
    std::string bytes;
    put<uint32_t>(&bytes, element_type);
    put<uint64_t>(&bytes, v.size());
    for (T x : v) put<T>(&bytes, x);
    return raw(key, 9, bytes);
  }

  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type = 0;
    std::string data;
    int64_t offset = -1;  // -1: behind the one before
    int64_t n_dims_claimed = -1;
  };
  GgufWriter& tensor(Tensor t) {
    tensors_.push_back(std::move(t));
    return *this;
  }
  GgufWriter& f32_tensor(const std::string& name, std::vector<uint64_t> dims, float fill = 0.0f) {
    uint64_t n = 1;
    for (uint64_t d : dims) n *= d;
    std::string data;
    for (uint64_t i = 0; i < n; ++i) put(&data, fill);
    return tensor({name, std::move(dims), 0, std::move(data), -1, -1});
  }
  std::vector<Tensor>& tensors() { return tensors_; }

  std::string bytes() const {
    std::string out = "GGUF";
    put<uint32_t>(&out, version);
    put<uint64_t>(&out, n_tensors_claimed >= 0 ? n_tensors_claimed : tensors_.size());
    put<uint64_t>(&out, n_keys_claimed >= 0 ? n_keys_claimed : n_keys_);
    out += keys_;
    std::string data;
    for (const Tensor& t : tensors_) {
      pad(&data);
      put_text(&out, t.name);
      put<uint32_t>(
          &out, static_cast<uint32_t>(t.n_dims_claimed >= 0 ? t.n_dims_claimed : t.dims.size()));
      for (uint64_t d : t.dims) put<uint64_t>(&out, d);
      put<uint32_t>(&out, t.type);
      put<uint64_t>(&out, t.offset >= 0 ? t.offset : data.size());
      data += t.data;
    }
    pad(&out);
    return out + data;
  }

 private:
  void pad(std::string* s) const {
    s->append((alignment - s->size() % alignment) % alignment, '\0');
  }
  std::string keys_;
  uint64_t n_keys_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace tandem::testing
