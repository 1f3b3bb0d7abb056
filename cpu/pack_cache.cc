// File: Header, one Entry per matrix, a hole up to a huge page, then the packed bytes as they lie in memory.
// Numbers are of this machine: the packed bytes are too, and the ISA is part of the key.
#include "cpu/pack_cache.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/kernel_table.h"

namespace tandem {
namespace {

constexpr char kMagic[8] = {'T', 'N', 'D', 'M', 'P', 'A', 'C', 'K'};
constexpr uint32_t kFileVersion = 4;
constexpr size_t kAlign = 2u << 20;      // of the packed bytes in the file: a huge page
constexpr size_t kSmallBytes = 64u << 20;  // page tables of so little memory stay cached
constexpr size_t kWriteBytes = 4u << 20;  // between two looks at `stop`

struct Header {
  char magic[8];
  uint32_t file_version, pack_version;
  char isa[32];
  PackCache::Hash stamp_hash, model_hash;
  uint64_t n_places, data_offset, n_bytes;
  double full_ms, lean_ms, full_perplexity, lean_perplexity;
  uint64_t n_figure_threads;
  PackCache::Hash figure_lean_file;
  uint64_t checksum;  // of header (this field zero) and entries
};
static_assert(sizeof(Header) == 8 + 8 + 32 + 32 + 24 + 40 + 16 + 8);

struct Entry {
  char name[40];
  uint32_t type, choice;
  int64_t n_rows, n_cols;
  uint64_t offset, size, checksum;
};
static_assert(sizeof(Entry) == 40 + 8 + 40);

void set_text(char* field, size_t size, const std::string& text) {
  std::memcpy(field, text.data(), std::min(text.size(), size));
}

PackCache::Hash hash_text(const std::string& text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return {h.low64, h.high64};
}

uint64_t table_checksum(Header header, const Entry* entries) {
  header.checksum = 0;
  const uint64_t seed = XXH3_64bits(&header, sizeof header);
  return XXH3_64bits_withSeed(entries, header.n_places * sizeof(Entry), seed);
}

size_t data_offset(size_t n_places) {
  return (sizeof(Header) + n_places * sizeof(Entry) + kAlign - 1) / kAlign * kAlign;
}

// Without checksums of data and choices.
std::vector<Entry> make_entries(const std::vector<PackedPlace>& places) {
  std::vector<Entry> entries(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    const PackedPlace& p = places[i];
    Entry& e = entries[i];
    e = {};
    set_text(e.name, sizeof e.name, p.name);
    e.type = static_cast<uint32_t>(p.type);
    e.n_rows = p.n_rows, e.n_cols = p.n_cols, e.offset = p.offset, e.size = p.size;
  }
  return entries;
}

bool is_same_place(const Entry& a, Entry b) {
  b.checksum = a.checksum, b.choice = a.choice;
  return std::memcmp(&a, &b, sizeof a) == 0;
}

Status other(std::string why) { return {StatusCode::kFailedPrecondition, std::move(why)}; }

// Everything but the checksums of data.
Status check_header(const Header& h, const std::vector<Entry>& wanted, const uint8_t* file, size_t file_size,
                    const std::string& isa, size_t n_bytes) {
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) return data_loss("it is not a file of packed weights");
  if (h.file_version != kFileVersion || h.pack_version != kPackVersion)
    return other(fmt::format("it is of version {}.{}, this program's is {}.{}", h.file_version, h.pack_version,
                             kFileVersion, kPackVersion));
  if (h.n_places > (file_size - sizeof h) / sizeof(Entry)) return data_loss("its table is cut short");
  const auto* entries = reinterpret_cast<const Entry*>(file + sizeof h);
  if (h.checksum != table_checksum(h, entries)) return data_loss("the checksum of its header is wrong");
  char wanted_isa[sizeof h.isa] = {};
  set_text(wanted_isa, sizeof wanted_isa, isa);
  if (std::memcmp(h.isa, wanted_isa, sizeof wanted_isa) != 0)
    return other("it is for " + std::string(h.isa, strnlen(h.isa, sizeof h.isa)) + ", the kernels are " + isa);
  if (h.n_places != wanted.size() || h.n_bytes != n_bytes || h.data_offset != data_offset(wanted.size()))
    return other("it is of a model of another shape");
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!is_same_place(entries[i], wanted[i])) return other("it is of a model of another shape");
  }
  if (file_size != h.data_offset + n_bytes)
    return data_loss(fmt::format("it has {} bytes, its header says {}", file_size, h.data_offset + n_bytes));
  return ok_status();
}

}  // namespace

PackCache::PackCache(Files files, std::string model_stamp)
    : files_(std::move(files)), model_stamp_(std::move(model_stamp)) {}

PackCache::Hash PackCache::file_id() const { return hash_text(model_stamp_); }

// Sets checksums_ and has_old_stamp_.
Result<MappedWeights> PackCache::map_existing(const std::string& isa, const std::vector<PackedPlace>& places,
                                              size_t n_bytes, const std::function<Hash()>& model_hash) {
  const UniqueFd file = std::move(files_.existing);
  if (!file.valid()) return not_found("no packed weights were stored");
  struct stat st;
  if (fstat(file.get(), &st) != 0) return errno_status(errno, "cannot examine it");
  const size_t size = static_cast<size_t>(st.st_size);
  if (size < sizeof(Header)) return data_loss(fmt::format("it has only {} bytes", size));
  MappedWeights mapped;
  CHECK_ASSIGN(mapped.bytes, Arena::map_file(file.get(), size));
  const uint8_t* base = mapped.bytes.data();
  Header header;
  std::memcpy(&header, base, sizeof header);
  CHECK_OK(check_header(header, make_entries(places), base, size, isa, n_bytes));
  has_old_stamp_ = header.stamp_hash != hash_text(model_stamp_);
  if (has_old_stamp_ && header.model_hash != model_hash()) return other("it is of another model");
  model_hash_ = header.model_hash;
  figures_ = {header.full_ms, header.lean_ms, header.full_perplexity, header.lean_perplexity, static_cast<uint32_t>(header.n_figure_threads),
              header.figure_lean_file};
  mapped.data = base + header.data_offset;
  const auto* entries = reinterpret_cast<const Entry*>(base + sizeof header);
  for (size_t i = 0; i < places.size(); ++i)
    checksums_.push_back(entries[i].checksum), choices_.push_back(entries[i].choice);
  return mapped;
}

Result<MappedWeights> PackCache::load(const std::string& isa, const std::vector<PackedPlace>& places,
                                      size_t n_bytes, const std::function<Hash()>& model_hash, OmpTeam* team) {
  auto mapped = map_existing(isa, places, n_bytes, model_hash);
  if (mapped.ok() && !files_.is_trusted) {
    const uint8_t* data = mapped->data;
    std::atomic<size_t> bad = places.size();
    team->run([&](TeamMember& member) {
      member.share(static_cast<int64_t>(places.size()), 1, [&](int64_t begin, int64_t end) {
        for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          if (XXH3_64bits(data + places[i].offset, places[i].size) != checksums_[i]) bad = i;
        }
      });
    });
    if (bad < places.size()) mapped = data_loss("the checksum of " + places[bad].name + " is wrong");
  }
  is_hit_ = mapped.ok();
  if (!is_hit_) {
    choices_.clear();
    figures_ = {};
    miss_reason_ = mapped.status().message();
    return mapped;
  }
  is_verified_ = !files_.is_trusted;
  mapped_data_ = mapped->data;
  n_mapped_ = n_bytes;
  is_huge_ = mapped->bytes.is_huge();
  mapped_places_ = places;
  if (has_old_stamp_ && can_store()) keep(isa, places, n_bytes, model_hash_, mapped->data);
  return mapped;
}

Status PackCache::move_to_huge_pages(const std::atomic<bool>& stop) {
  if (mapped_data_ == nullptr || is_huge_ || files_.is_shared || n_mapped_ < kSmallBytes) return ok_status();
  return Arena::replace_by_copy(mapped_data_, n_mapped_, stop);
}

Status PackCache::verify(const std::atomic<bool>& stop) {
  for (size_t i = 0; i < mapped_places_.size(); ++i) {
    const PackedPlace& place = mapped_places_[i];
    if (stop) return {StatusCode::kCancelled, "stopped while checking packed weights"};
    if (XXH3_64bits(mapped_data_ + place.offset, place.size) != checksums_[i])
      return data_loss("the checksum of " + place.name + " in the stored packed weights is wrong");
  }
  is_verified_ = true;
  return ok_status();
}

void PackCache::keep(const std::string& isa, std::vector<PackedPlace> places, size_t n_bytes,
                     const Hash& model_hash, const uint8_t* data) {
  isa_ = isa, places_ = std::move(places), n_bytes_ = n_bytes, model_hash_ = model_hash, data_ = data;
}

void PackCache::set_choices(const std::string& isa, std::vector<uint32_t> choices) {
  if (choices == choices_) return;
  choices_ = std::move(choices);
  if (is_hit_ && can_store()) keep(isa, mapped_places_, n_mapped_, model_hash_, mapped_data_);
}

void PackCache::set_figures(const std::string& isa, const SetFigures& figures) {
  if (figures == figures_) return;
  figures_ = figures;
  if (is_hit_ && can_store()) keep(isa, mapped_places_, n_mapped_, model_hash_, mapped_data_);
}

Status PackCache::store(const std::atomic<bool>& stop) {
  const UniqueFd file = std::exchange(files_.fresh, UniqueFd());
  std::vector<Entry> entries = make_entries(places_);
  for (size_t i = 0; i < entries.size(); ++i) {
    if (stop) break;
    entries[i].checksum = XXH3_64bits(data_ + entries[i].offset, entries[i].size);
    entries[i].choice = i < choices_.size() ? choices_[i] : 0;
  }
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.file_version = kFileVersion, header.pack_version = kPackVersion;
  set_text(header.isa, sizeof header.isa, isa_);
  header.stamp_hash = hash_text(model_stamp_), header.model_hash = model_hash_;
  header.n_places = entries.size(), header.data_offset = data_offset(entries.size()), header.n_bytes = n_bytes_;
  header.full_ms = figures_.full_ms, header.lean_ms = figures_.lean_ms;
  header.full_perplexity = figures_.full_perplexity, header.lean_perplexity = figures_.lean_perplexity;
  header.n_figure_threads = figures_.n_threads, header.figure_lean_file = figures_.lean_file;
  header.checksum = table_checksum(header, entries.data());
  std::vector<uint8_t> head(sizeof header + entries.size() * sizeof(Entry));
  std::memcpy(head.data(), &header, sizeof header);
  if (!entries.empty()) std::memcpy(head.data() + sizeof header, entries.data(), entries.size() * sizeof(Entry));
  Status status = write_all(file.get(), head.data(), head.size(), stop);
  if (status.ok() && lseek(file.get(), static_cast<off_t>(header.data_offset), SEEK_SET) < 0)
    status = errno_status(errno, "cannot write packed weights");
  if (status.ok()) status = write_all(file.get(), data_, n_bytes_, stop);
  if (status.ok() && fsync(file.get()) != 0) status = errno_status(errno, "cannot write packed weights to disk");
  // Else this process would hold a copy of its own, and the next one another.
  if (status.ok() && data_ != mapped_data_)
    (void)Arena::replace_by_file(data_, n_bytes_, file.get(), header.data_offset, !files_.is_shared).ok();
  data_ = nullptr;
  return status;
}

Status PackCache::write_all(int fd, const void* bytes, size_t size, const std::atomic<bool>& stop) {
  const auto* from = static_cast<const uint8_t*>(bytes);
  while (size > 0) {
    if (stop) return {StatusCode::kCancelled, "stopped while writing packed weights"};
    const ssize_t n = write(fd, from, std::min(size, kWriteBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
      return exhausted(std::string("no room for packed weights: ") + std::strerror(errno));
    if (n <= 0) return errno_status(n < 0 ? errno : EIO, "cannot write packed weights");
    from += n;
    size -= static_cast<size_t>(n);
  }
  return ok_status();
}

}  // namespace tandem
