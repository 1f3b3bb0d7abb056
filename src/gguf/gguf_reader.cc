#include "gguf/gguf_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <unordered_map>

#include "gguf/gguf_parser.h"

namespace tandem {
namespace {

// One mapped part. The mapping outlives the descriptor.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
  }

  Status map(const GgufFile& file) {
    struct stat info {};
    if (fstat(file.fd.get(), &info) != 0)
      return errno_status(errno, "cannot read the size of " + file.name);
    if (S_ISDIR(info.st_mode))
      return invalid_argument(file.name + ": is a directory; allowed: a GGUF file");
    if (!S_ISREG(info.st_mode))
      return invalid_argument(file.name + ": is not a regular file; allowed: a GGUF file");
    if (info.st_size == 0) return ok_status();  // the parser says what that means
    size_ = static_cast<size_t>(info.st_size);
    void* p = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
    if (p == MAP_FAILED) {
      size_ = 0;
      return errno_status(errno, "cannot map " + file.name);
    }
    data_ = p;
    return ok_status();
  }
  void release_pages() const {
    if (data_ != nullptr) madvise(data_, size_, MADV_DONTNEED);
  }
  void release_pages(const uint8_t* data, size_t n_bytes) const {
    const auto base = reinterpret_cast<uintptr_t>(data_), at = reinterpret_cast<uintptr_t>(data);
    if (data_ == nullptr || at < base || at - base >= size_) return;
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = (at + page - 1) / page * page;
    const uintptr_t end = (at + std::min(n_bytes, size_ - (at - base))) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  const uint8_t* data() const { return static_cast<const uint8_t*>(data_); }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

struct GgufModel::Impl {
  std::vector<Mapping> mappings;
  std::string name;
  uint32_t version = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata;
  std::vector<GgufTensor> tensors;
  // Keys view the strings of the two vectors, which do not change any more.
  std::unordered_map<std::string_view, const GgufValue*> by_key;
  std::unordered_map<std::string_view, const GgufTensor*> by_name;

  void index() {
    for (const auto& [key, value] : metadata) by_key.emplace(key, &value);
    for (const GgufTensor& t : tensors) by_name.emplace(t.name, &t);
  }
  Status wrong_kind(std::string_view key, const char* wanted, const GgufValue& found) const {
    return invalid_argument(fmt::format("{}: metadata key \"{}\" must be {}, found {}", name,
                                        printable(key), wanted, gguf_type_name(found.type)));
  }
  Status missing(std::string_view key) const {
    return not_found(fmt::format("{}: metadata key \"{}\" is missing", name, printable(key)));
  }
};

GgufModel::GgufModel() : impl_(std::make_unique<Impl>()) {}
GgufModel::~GgufModel() = default;

Result<std::unique_ptr<GgufModel>> GgufModel::parse(const uint8_t* data, size_t size,
                                                    std::string name) {
  std::unique_ptr<GgufModel> model(new GgufModel());
  Impl& impl = *model->impl_;
  impl.name = std::move(name);
  CHECK_ASSIGN(ParsedGguf parsed, parse_gguf(data, size, impl.name));
  impl.version = parsed.version;
  impl.metadata = std::move(parsed.metadata);
  impl.tensors = std::move(parsed.tensors);
  impl.index();
  return model;
}

namespace {

// Part `i` of `n`: its own numbers must agree with its place. A file without split keys is a whole
// model.
Status check_part(const GgufModel& part, size_t i, size_t n) {
  auto count = part.get_int("split.count");
  if (!count.ok() && count.status().code() == StatusCode::kNotFound) {
    if (n == 1) return ok_status();
    return invalid_argument(
        fmt::format("{}: metadata key \"split.count\" is missing: not a part of a split"
                    " model, but {} files were given",
                    part.name(), n));
  }
  CHECK_OK(count.status());
  if (*count != static_cast<int64_t>(n))
    return invalid_argument(
        fmt::format("{}: metadata key \"split.count\" is {}, but {} file{} given; allowed:"
                    " all parts of one model, in order",
                    part.name(), *count, n, n == 1 ? " was" : "s were"));
  CHECK_ASSIGN(int64_t number, part.get_int("split.no"));
  if (number != static_cast<int64_t>(i))
    return invalid_argument(
        fmt::format("{}: metadata key \"split.no\" must be {} for part {} of {}, found {}",
                    part.name(), i, i + 1, n, number));
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<GgufModel>> GgufModel::open(std::vector<GgufFile> files) {
  if (files.empty()) return invalid_argument("no model file was given; at least one is needed");
  std::unique_ptr<GgufModel> model;
  std::vector<Mapping> mappings;
  for (size_t i = 0; i < files.size(); ++i) {
    Mapping mapping;
    CHECK_OK(mapping.map(files[i]));
    CHECK_ASSIGN(auto part, parse(mapping.data(), mapping.size(), files[i].name));
    mappings.push_back(std::move(mapping));
    CHECK_OK(check_part(*part, i, files.size()));
    if (i == 0) {
      model = std::move(part);
      continue;
    }
    for (GgufTensor& t : part->impl_->tensors) {
      if (const GgufTensor* other = model->find_tensor(t.name))
        return invalid_argument(
            fmt::format("{}: tensor \"{}\" is in an earlier part too; allowed: once", files[i].name,
                        printable(other->name)));
      model->impl_->tensors.push_back(std::move(t));
    }
    model->impl_->by_name.clear();  // the vector may have moved its strings
    model->impl_->by_key.clear();
    model->impl_->index();
  }
  if (auto total = model->get_int("split.tensors.count"); total.ok()) {
    if (*total != static_cast<int64_t>(model->tensors().size()))
      return invalid_argument(
          fmt::format("{}: metadata key \"split.tensors.count\" is {}, but all parts"
                      " together have {} tensors",
                      model->name(), *total, model->tensors().size()));
  } else if (total.status().code() != StatusCode::kNotFound || files.size() > 1) {
    return total.status();
  }
  model->impl_->mappings = std::move(mappings);
  return model;
}

const GgufValue* GgufModel::find(std::string_view key) const {
  auto it = impl_->by_key.find(key);
  return it == impl_->by_key.end() ? nullptr : it->second;
}

Result<int64_t> GgufModel::get_int(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return impl_->missing(key);
  if (const auto* i = std::get_if<int64_t>(&v->value)) return *i;
  const auto* u = std::get_if<uint64_t>(&v->value);
  if (u == nullptr) return impl_->wrong_kind(key, "an integer", *v);
  if (*u > static_cast<uint64_t>(INT64_MAX))
    return invalid_argument(fmt::format("{}: metadata key \"{}\" must be below 2^63, found {}",
                                        impl_->name, printable(key), *u));
  return static_cast<int64_t>(*u);
}

Result<double> GgufModel::get_float(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return impl_->missing(key);
  if (const auto* d = std::get_if<double>(&v->value)) return *d;
  if (const auto* u = std::get_if<uint64_t>(&v->value)) return static_cast<double>(*u);
  if (const auto* i = std::get_if<int64_t>(&v->value)) return static_cast<double>(*i);
  return impl_->wrong_kind(key, "a number", *v);
}

Result<bool> GgufModel::get_bool(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return impl_->missing(key);
  if (const auto* b = std::get_if<bool>(&v->value)) return *b;
  return impl_->wrong_kind(key, "a bool", *v);
}

Result<std::string> GgufModel::get_string(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return impl_->missing(key);
  if (const auto* s = std::get_if<std::string_view>(&v->value)) return std::string(*s);
  return impl_->wrong_kind(key, "a string", *v);
}

Result<const GgufArray*> GgufModel::get_array(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return impl_->missing(key);
  if (const auto* a = std::get_if<GgufArray>(&v->value)) return a;
  return impl_->wrong_kind(key, "an array", *v);
}

const std::vector<std::pair<std::string, GgufValue>>& GgufModel::metadata() const {
  return impl_->metadata;
}

const GgufTensor* GgufModel::find_tensor(std::string_view name) const {
  auto it = impl_->by_name.find(name);
  return it == impl_->by_name.end() ? nullptr : it->second;
}

const std::vector<GgufTensor>& GgufModel::tensors() const { return impl_->tensors; }
const std::string& GgufModel::name() const { return impl_->name; }
uint32_t GgufModel::version() const { return impl_->version; }

void GgufModel::release_pages() const {
  for (const Mapping& m : impl_->mappings) m.release_pages();
}
void GgufModel::release_pages(const uint8_t* data, size_t n_bytes) const {
  for (const Mapping& m : impl_->mappings) m.release_pages(data, n_bytes);
}

}  // namespace tandem
