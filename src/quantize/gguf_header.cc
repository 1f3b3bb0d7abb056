#include "quantize/gguf_header.h"

#include <cstring>

#include "gguf/gguf_parser.h"

namespace tandem {

namespace {

class Writer {
 public:
  template <typename T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) {
    put<uint64_t>(text.size());
    bytes_.append(text);
  }
  void put_value(const GgufValue& value) {
    put(static_cast<uint32_t>(value.type));
    if (const auto* array = std::get_if<GgufArray>(&value.value)) return put_array(*array);
    if (const auto* text = std::get_if<std::string_view>(&value.value)) return put_text(*text);
    if (const auto* truth = std::get_if<bool>(&value.value)) return put<uint8_t>(*truth);
    if (const auto* real = std::get_if<double>(&value.value)) {
      return value.type == GgufValueType::kF32 ? put(static_cast<float>(*real)) : put(*real);
    }
    // Little-endian: the low bytes of the 64 are the number in its own width.
    uint64_t bits = 0;
    if (const auto* whole = std::get_if<int64_t>(&value.value)) bits = static_cast<uint64_t>(*whole);
    if (const auto* natural = std::get_if<uint64_t>(&value.value)) bits = *natural;
    bytes_.append(reinterpret_cast<const char*>(&bits), gguf_type_bytes(value.type));
  }
  std::string take() { return std::move(bytes_); }

 private:
  void put_array(const GgufArray& array) {
    put(static_cast<uint32_t>(array.element_type));
    put(array.count);
    if (array.element_type == GgufValueType::kString) {
      for (const std::string_view text : array.strings) put_text(text);
      return;
    }
    if (array.count == 0) return;
    bytes_.append(reinterpret_cast<const char*>(array.data),
                  array.count * gguf_type_bytes(array.element_type));
  }
  std::string bytes_;
};

}  // namespace

std::string gguf_header(const std::vector<std::pair<std::string, GgufValue>>& metadata,
                        const std::vector<HeaderTensor>& tensors) {
  constexpr uint32_t kVersion = 3;
  Writer w;
  for (const char c : {'G', 'G', 'U', 'F'}) w.put(c);
  w.put(kVersion);
  w.put<uint64_t>(tensors.size());
  w.put<uint64_t>(metadata.size());
  for (const auto& [key, value] : metadata) {
    w.put_text(key);
    w.put_value(value);
  }
  for (const HeaderTensor& t : tensors) {
    w.put_text(*t.name);
    w.put(static_cast<uint32_t>(t.shape->n_dims));
    for (int d = 0; d < t.shape->n_dims; ++d) w.put(static_cast<uint64_t>(t.shape->dims[d]));
    w.put(static_cast<uint32_t>(t.type));
    w.put(t.offset);
  }
  return w.take();
}

}  // namespace tandem
