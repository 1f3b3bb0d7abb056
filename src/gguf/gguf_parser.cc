#include "gguf/gguf_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "gguf/byte_cursor.h"

namespace tandem {
namespace {

constexpr uint64_t kMaxKeys = 65536;  // real files have tens; bounds the memory a hostile one costs
constexpr uint64_t kMaxTensors = 65536;        // the largest served families have a few thousand
constexpr uint64_t kMaxKeyBytes = 65535;       // GGUF specification
constexpr uint64_t kMaxTensorNameBytes = 255;  // ggml itself stops at 63
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 65536;
constexpr size_t kHeaderBytes = 24;

// Types that exist elsewhere, so that the message names what was found (ggml type ids).
struct ForeignType {
  uint32_t id;
  const char* name;
};
constexpr ForeignType kForeignTypes[] = {
    {4, "Q4_2"},        {5, "Q4_3"},        {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"},      {21, "IQ3_S"},      {22, "IQ2_S"},   {29, "IQ1_M"},  {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"},   {35, "TQ2_0"},  {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {40, "NVFP4"},
};

std::string served_types() {
  int n = 0;
  const QuantTraits* rows = quant_traits_all(&n);
  std::string names;
  for (int i = 0; i < n; ++i) names += (i ? ", " : "") + std::string(rows[i].name);
  return names;
}

class Parser {
 public:
  Parser(const uint8_t* data, size_t size, const std::string& name)
      : data_(data), size_(size), name_(name), cursor_(data, size) {}

  Result<ParsedGguf> parse() {
    CHECK_OK(read_header());
    CHECK_OK(read_metadata());
    CHECK_OK(find_alignment());
    CHECK_OK(read_tensor_infos());
    CHECK_OK(place_tensors());
    return std::move(out_);
  }

 private:
  Status bad(const std::string& what) const { return invalid_argument(name_ + ": " + what); }

  // `need` more bytes at the cursor were wanted for `what`.
  Status truncated(const std::string& what, uint64_t need) const {
    return data_loss(
        fmt::format("{}: truncated: {} needs {} bytes at offset {}, the file has {} bytes there"
                    " ({} in all); fetch it again",
                    name_, what, need, cursor_.offset(), cursor_.remaining(), size_));
  }
  Status truncated_string(const std::string& what, uint64_t length) const {
    return truncated(what, length == 0 ? 8 : length);
  }

  Status not_gguf() const {
    std::string_view head(reinterpret_cast<const char*>(data_), std::min<size_t>(size_, 64));
    std::string hint;
    if (head.substr(0, 4) == "FUGG")
      hint = "; this is a big-endian file: convert it to little-endian";
    else if (head.find_first_not_of(" \t\r\n\xef\xbb\xbf") != head.npos &&
             head[head.find_first_not_of(" \t\r\n\xef\xbb\xbf")] == '<')
      hint = "; this looks like a web page saved in place of the model: fetch it again";
    else if (head.substr(0, 7) == "version")
      hint = "; this looks like a Git LFS pointer: fetch the file itself";
    else if (head.substr(0, 2) == "PK")
      hint = "; this is a zip archive: unpack it first";
    return bad(fmt::format("not a GGUF file: magic must be \"GGUF\", found \"{}\"{}",
                           printable(head.substr(0, 4)), hint));
  }

  Status read_header() {
    if (size_ == 0)
      return data_loss(name_ + ": the file is empty (0 bytes), not a GGUF file; fetch it again");
    if (size_ < 4 || std::memcmp(data_, "GGUF", 4) != 0) return not_gguf();
    if (size_ < kHeaderBytes) return truncated("the header", kHeaderBytes);
    uint32_t magic = 0, version = 0;
    if (!cursor_.read(&magic) || !cursor_.read(&version) || !cursor_.read(&n_tensors_) ||
        !cursor_.read(&n_keys_))
      return truncated("the header", kHeaderBytes);
    if (version != 0 && (version & 0xffff) == 0)
      return bad(
          fmt::format("version reads 0x{:08x}: this is a big-endian file; allowed: little-endian,"
                      " version 2 or 3; convert it",
                      version));
    if (version != 2 && version != 3)
      return Status(StatusCode::kUnimplemented,
                    fmt::format("{}: version must be 2 or 3, found {}", name_, version));
    out_.version = version;
    // Least bytes: a key of one byte with a one-byte value; a tensor of one dimension.
    CHECK_OK(check_count("metadata keys", n_keys_, 8 + 1 + 4 + 1, kMaxKeys));
    return check_count("tensors", n_tensors_, 8 + 1 + 4 + 8 + 4 + 8, kMaxTensors);
  }

  Status check_count(const char* what, uint64_t count, uint64_t least_bytes, uint64_t most) const {
    if (count > most)
      return bad(fmt::format("number of {} must be at most {}, found {}", what, most, count));
    if (count > cursor_.remaining() / least_bytes)
      return truncated(fmt::format("a table of {} {}", count, what), count * least_bytes);
    return ok_status();
  }

  Status read_metadata() {
    out_.metadata.reserve(n_keys_);
    std::unordered_set<std::string_view> seen;
    for (uint64_t i = 0; i < n_keys_; ++i) {
      std::string_view key;
      uint64_t length = 0;
      std::string what = fmt::format("metadata key number {} of {}", i + 1, n_keys_);
      if (!cursor_.read_string(&key, &length)) return truncated_string(what, length);
      if (key.empty() || key.size() > kMaxKeyBytes)
        return bad(fmt::format("{}: length must be from 1 to {}, found {}", what, kMaxKeyBytes,
                               key.size()));
      what = "metadata key \"" + printable(key) + "\"";
      if (!seen.insert(key).second) return bad(what + " is there twice; allowed: once");
      uint32_t type = 0;
      if (!cursor_.read(&type)) return truncated("type of " + what, 4);
      GgufValue value;
      CHECK_OK(read_value(what, type, &value));
      out_.metadata.emplace_back(std::string(key), std::move(value));
    }
    return ok_status();
  }

  template <typename T, typename Stored>
  bool read_number(GgufValue* value) {
    T v{};
    if (!cursor_.read(&v)) return false;
    value->value = static_cast<Stored>(v);
    return true;
  }

  Status read_value(const std::string& what, uint32_t type_id, GgufValue* value) {
    auto type = static_cast<GgufValueType>(type_id);
    value->type = type;
    bool ok = false;
    switch (type) {
      case GgufValueType::kU8:
        ok = read_number<uint8_t, uint64_t>(value);
        break;
      case GgufValueType::kU16:
        ok = read_number<uint16_t, uint64_t>(value);
        break;
      case GgufValueType::kU32:
        ok = read_number<uint32_t, uint64_t>(value);
        break;
      case GgufValueType::kU64:
        ok = read_number<uint64_t, uint64_t>(value);
        break;
      case GgufValueType::kI8:
        ok = read_number<int8_t, int64_t>(value);
        break;
      case GgufValueType::kI16:
        ok = read_number<int16_t, int64_t>(value);
        break;
      case GgufValueType::kI32:
        ok = read_number<int32_t, int64_t>(value);
        break;
      case GgufValueType::kI64:
        ok = read_number<int64_t, int64_t>(value);
        break;
      case GgufValueType::kF32:
        ok = read_number<float, double>(value);
        break;
      case GgufValueType::kF64:
        ok = read_number<double, double>(value);
        break;
      case GgufValueType::kBool: {
        uint8_t v = 0;
        ok = cursor_.read(&v);
        if (v > 1) return bad(fmt::format("{}: a bool must be 0 or 1, found {}", what, v));
        value->value = v != 0;
        break;
      }
      case GgufValueType::kString: {
        std::string_view text;
        uint64_t length = 0;
        if (!cursor_.read_string(&text, &length)) return truncated_string(what, length);
        value->value = text;
        return ok_status();
      }
      case GgufValueType::kArray:
        return read_array(what, value);
      default:
        return bad(fmt::format("{}: type id must be from 0 to 12, found {}", what, type_id));
    }
    return ok ? ok_status() : truncated(what, gguf_type_bytes(type));
  }

  Status read_array(const std::string& what, GgufValue* value) {
    uint32_t type_id = 0;
    GgufArray array;
    if (!cursor_.read(&type_id) || !cursor_.read(&array.count)) return truncated(what, 12);
    array.element_type = static_cast<GgufValueType>(type_id);
    if (array.element_type == GgufValueType::kArray)
      return bad(what +
                 ": arrays of arrays are not allowed; allowed elements: numbers, bools, strings");
    if (type_id > static_cast<uint32_t>(GgufValueType::kF64))
      return bad(fmt::format("{}: element type id must be from 0 to 12, found {}", what, type_id));
    bool is_text = array.element_type == GgufValueType::kString;
    uint64_t least = is_text ? 8 : gguf_type_bytes(array.element_type), need = 0;
    if (__builtin_mul_overflow(array.count, least, &need) || need > cursor_.remaining())
      return truncated(fmt::format("{} with {} elements", what, array.count),
                       need == 0 ? UINT64_MAX : need);
    array.data = cursor_.position();
    if (!is_text) {
      if (!cursor_.skip(need)) return truncated(what, need);
    } else {
      array.data = nullptr;
      array.strings.resize(array.count);
      uint64_t length = 0;
      for (uint64_t i = 0; i < array.count; ++i)
        if (!cursor_.read_string(&array.strings[i], &length))
          return truncated_string(fmt::format("{}, element {} of {},", what, i, array.count),
                                  length);
    }
    value->value = std::move(array);
    return ok_status();
  }

  Status find_alignment() {
    for (const auto& [key, value] : out_.metadata) {
      if (key != "general.alignment") continue;
      const auto* v = std::get_if<uint64_t>(&value.value);
      if (v == nullptr)
        return bad(fmt::format("metadata key \"general.alignment\" must be uint32, found {}",
                               gguf_type_name(value.type)));
      if (*v < 8 || *v > kMaxAlignment || (*v & (*v - 1)) != 0)
        return bad(fmt::format(
            "metadata key \"general.alignment\" must be a power of two from 8 to {}, found {}",
            kMaxAlignment, *v));
      alignment_ = *v;
    }
    return ok_status();
  }

  Status read_tensor_infos() {
    out_.tensors.reserve(n_tensors_);
    offsets_.reserve(n_tensors_);
    std::unordered_set<std::string_view> seen;
    for (uint64_t i = 0; i < n_tensors_; ++i) {
      std::string_view name;
      uint64_t length = 0;
      std::string what = fmt::format("tensor number {} of {}", i + 1, n_tensors_);
      if (!cursor_.read_string(&name, &length)) return truncated_string("name of " + what, length);
      if (name.empty() || name.size() > kMaxTensorNameBytes)
        return bad(fmt::format("{}: length of its name must be from 1 to {}, found {}", what,
                               kMaxTensorNameBytes, name.size()));
      what = "tensor \"" + printable(name) + "\"";
      if (!seen.insert(name).second) return bad(what + " is there twice; allowed: once");
      GgufTensor tensor;
      tensor.name = name;
      CHECK_OK(read_shape(what, &tensor));
      out_.tensors.push_back(std::move(tensor));
    }
    return ok_status();
  }

  Status read_shape(const std::string& what, GgufTensor* tensor) {
    uint32_t n_dims = 0, type_id = 0;
    uint64_t n_values = 1, offset = 0;
    if (!cursor_.read(&n_dims)) return truncated(what, 4);
    if (n_dims < 1 || n_dims > 4)
      return bad(
          fmt::format("{}: number of dimensions must be from 1 to 4, found {}", what, n_dims));
    tensor->n_dims = static_cast<int>(n_dims);
    for (uint32_t d = 0; d < n_dims; ++d) {
      uint64_t dim = 0;
      if (!cursor_.read(&dim)) return truncated(what, 8);
      if (dim == 0)
        return bad(fmt::format("{}: dimension {} must be at least 1, found 0", what, d));
      if (__builtin_mul_overflow(n_values, dim, &n_values) || n_values > INT64_MAX)
        return bad(fmt::format("{}: dimension {} is {}: the product of all must be below 2^63",
                               what, d, dim));
      tensor->dims[d] = static_cast<int64_t>(dim);
    }
    if (!cursor_.read(&type_id) || !cursor_.read(&offset)) return truncated(what, 12);
    const QuantTraits* traits = is_file_type(type_id) ? quant_traits(type_id) : nullptr;
    if (traits == nullptr) return unknown_type(what, type_id);
    auto block = static_cast<uint64_t>(traits->block_size);
    if (static_cast<uint64_t>(tensor->dims[0]) % block != 0)
      return bad(fmt::format("{}: dimension 0 must be a multiple of {} for type {}, found {}", what,
                             block, traits->name, tensor->dims[0]));
    tensor->type = traits->type;
    uint64_t n_bytes = 0;
    if (__builtin_mul_overflow(n_values / block, static_cast<uint64_t>(traits->block_bytes),
                               &n_bytes))
      return bad(fmt::format("{}: its {} values of type {} need more than 2^64 bytes", what,
                             n_values, traits->name));
    tensor->n_bytes = n_bytes;
    if (offset % alignment_ != 0)
      return bad(fmt::format("{}: offset must be a multiple of the alignment {}, found {}", what,
                             alignment_, offset));
    offsets_.push_back(offset);
    return ok_status();
  }

  Status unknown_type(const std::string& what, uint32_t id) const {
    const auto* known = std::find_if(std::begin(kForeignTypes), std::end(kForeignTypes),
                                     [id](const ForeignType& t) { return t.id == id; });
    std::string found = known != std::end(kForeignTypes)
                            ? fmt::format("{} (id {})", known->name, id)
                            : fmt::format("unknown id {}", id);
    return unimplemented(fmt::format("{}: {}: type {} is not served; allowed: {}", name_, what,
                                     found, served_types()));
  }

  // Data begins after the tensor table, aligned. A cut file is told with the size of the whole one.
  Status place_tensors() {
    size_t misfit = cursor_.offset() % alignment_;
    uint64_t begin = cursor_.offset() + (misfit ? alignment_ - misfit : 0);
    uint64_t need = out_.tensors.empty() ? 0 : begin;
    const GgufTensor* last = nullptr;
    for (size_t i = 0; i < out_.tensors.size(); ++i) {
      uint64_t end = 0;
      if (__builtin_add_overflow(offsets_[i], out_.tensors[i].n_bytes, &end) ||
          __builtin_add_overflow(end, begin, &end))
        return bad(fmt::format("tensor \"{}\": offset {} plus {} bytes is more than 2^64",
                               printable(out_.tensors[i].name), offsets_[i],
                               out_.tensors[i].n_bytes));
      if (end <= need) continue;
      need = end;
      last = &out_.tensors[i];
    }
    if (need > size_)
      return data_loss(
          fmt::format("{}: truncated: have {} bytes, need {} bytes (up to the end of tensor"
                      " \"{}\"); fetch it again",
                      name_, size_, need, last ? printable(last->name) : ""));
    for (size_t i = 0; i < out_.tensors.size(); ++i)
      out_.tensors[i].data = data_ + begin + offsets_[i];
    out_.data_offset = static_cast<size_t>(std::min<uint64_t>(begin, size_));
    return check_overlap();
  }

  Status check_overlap() const {
    std::vector<const GgufTensor*> order;
    for (const GgufTensor& t : out_.tensors) order.push_back(&t);
    std::sort(order.begin(), order.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->data < b->data; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->data + order[i - 1]->n_bytes <= order[i]->data) continue;
      return bad(
          fmt::format("tensor \"{}\" begins inside the data of tensor \"{}\"; allowed: no overlap",
                      printable(order[i]->name), printable(order[i - 1]->name)));
    }
    return ok_status();
  }

  const uint8_t* data_;
  size_t size_;
  const std::string& name_;
  ByteCursor cursor_;
  uint64_t n_tensors_ = 0, n_keys_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<uint64_t> offsets_;  // of the tensors, in the data section
  ParsedGguf out_;
};

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t kMaxShown = 64;
  std::string out;
  for (unsigned char c : text.substr(0, kMaxShown)) {
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\')
      out += static_cast<char>(c);
    else
      out += fmt::format("\\x{:02x}", c);
  }
  if (text.size() > kMaxShown) out += "…";
  return out;
}

Result<ParsedGguf> parse_gguf(const uint8_t* data, size_t size, const std::string& name) {
  return Parser(data, size, name).parse();
}

}  // namespace tandem
