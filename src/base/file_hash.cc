#include "base/file_hash.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>

#include "base/file_io.h"
#include "base/hex.h"

namespace tandem {
namespace {

constexpr size_t kBlockBytes = 1u << 20;
constexpr size_t kMaxLines = 100;
constexpr size_t kHexDigits = 64;

using Lines = std::vector<std::string>;
using Digest = std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)>;

Digest begin_digest() {
  Digest digest(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr);
  return digest;
}

std::string end_digest(const Digest& digest) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned n = 0;
  EVP_DigestFinal_ex(digest.get(), bytes, &n);
  return hex_of({bytes, n});
}

template <typename OnRead>
Status add_file(int fd, const Digest& digest, const std::atomic<bool>* stop, const OnRead& on_read) {
  std::vector<char> block(kBlockBytes);
  for (off_t at = 0;;) {
    if (stop != nullptr && *stop) return Status(StatusCode::kCancelled, "hashing was stopped");
    const ssize_t n = pread(fd, block.data(), block.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(errno, "cannot read the file to hash");
    if (n == 0) return ok_status();
    EVP_DigestUpdate(digest.get(), block.data(), static_cast<size_t>(n));
    (void)posix_fadvise(fd, at, n, POSIX_FADV_DONTNEED);
    at += n;
    on_read(n);
  }
}

Lines read_lines(const std::string& path) {
  Lines lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && lines.size() < kMaxLines;) lines.push_back(line);
  return lines;
}

}  // namespace

Result<std::string> sha256_of_files(const std::vector<int>& fds, const std::atomic<bool>* stop,
                                    const std::function<void(int64_t)>& on_read) {
  const Digest digest = begin_digest();
  int64_t n_read = 0;
  const auto add_read = [&](int64_t n) {
    n_read += n;
    if (on_read) on_read(n_read);
  };
  for (const int fd : fds) CHECK_OK(add_file(fd, digest, stop, add_read));
  return end_digest(digest);
}

std::string sha256_of_text(std::string_view text) {
  const Digest digest = begin_digest();
  EVP_DigestUpdate(digest.get(), text.data(), text.size());
  return end_digest(digest);
}

std::string find_sha256(const std::string& memory_path, const std::string& stamp) {
  const std::string head = stamp + " ";
  for (const std::string& line : read_lines(memory_path)) {
    if (line.compare(0, head.size(), head) == 0 && line.size() == head.size() + kHexDigits)
      return line.substr(head.size());
  }
  return "";
}

void remember_sha256(const std::string& memory_path, const std::string& stamp, const std::string& digest) {
  Lines lines = read_lines(memory_path);
  lines.insert(lines.begin(), stamp + " " + digest);
  if (lines.size() > kMaxLines) lines.resize(kMaxLines);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  (void)replace_note(memory_path, text).ok();  // then it is computed again
}

}  // namespace tandem
