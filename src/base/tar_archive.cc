#include "base/tar_archive.h"

#include <archive.h>
#include <archive_entry.h>

#include <memory>

namespace tandem {
namespace {

using Writer = std::unique_ptr<archive, int (*)(archive*)>;
using Entry = std::unique_ptr<archive_entry, void (*)(archive_entry*)>;

la_ssize_t append(archive*, void* out, const void* bytes, size_t n) {
  static_cast<std::string*>(out)->append(static_cast<const char*>(bytes), n);
  return static_cast<la_ssize_t>(n);
}

Status failed(archive* writer) {
  const char* reason = archive_error_string(writer);
  return internal_error(std::string("cannot make the archive: ") + (reason ? reason : "unknown reason"));
}

Status add(archive* writer, const ArchiveEntry& file, int64_t mtime_s) {
  Entry entry(archive_entry_new(), archive_entry_free);
  archive_entry_set_pathname(entry.get(), file.path.c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(file.content.size()));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0600);
  archive_entry_set_mtime(entry.get(), static_cast<time_t>(mtime_s), 0);
  if (archive_write_header(writer, entry.get()) != ARCHIVE_OK) return failed(writer);
  la_ssize_t n = archive_write_data(writer, file.content.data(), file.content.size());
  return n == static_cast<la_ssize_t>(file.content.size()) ? ok_status() : failed(writer);
}

}  // namespace

Result<std::string> make_tar_gz(const std::vector<ArchiveEntry>& entries, int64_t mtime_s) {
  std::string out;
  Writer writer(archive_write_new(), archive_write_free);
  if (archive_write_add_filter_gzip(writer.get()) != ARCHIVE_OK ||
      archive_write_set_format_ustar(writer.get()) != ARCHIVE_OK ||
      archive_write_open(writer.get(), &out, nullptr, append, nullptr) != ARCHIVE_OK)
    return failed(writer.get());
  for (const ArchiveEntry& file : entries) CHECK_OK(add(writer.get(), file, mtime_s));
  if (archive_write_close(writer.get()) != ARCHIVE_OK) return failed(writer.get());
  return out;
}

}  // namespace tandem
