#include "supervisor/model_digest.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>

#include "base/unique_fd.h"

namespace tandem {
namespace {

constexpr size_t kBlock = 1u << 20;
constexpr const char* kMemory = "/model_digests";  // a line each: stamp, blank, digest
constexpr size_t kMaxLines = 100;
constexpr size_t kHexDigits = 64;

using Lines = std::vector<std::string>;

Lines read_lines(const std::string& path) {
  Lines lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && lines.size() < kMaxLines;) lines.push_back(line);
  return lines;
}

std::string find(const std::string& folder, const std::string& stamp) {
  const std::string head = stamp + " ";
  for (const std::string& line : read_lines(folder + kMemory)) {
    if (line.compare(0, head.size(), head) == 0 && line.size() == head.size() + kHexDigits)
      return line.substr(head.size());
  }
  return "";
}

// The newest first. In one step, so that a reader finds the older or the newer file.
void remember(const std::string& folder, const std::string& stamp, const std::string& digest) {
  Lines lines = read_lines(folder + kMemory);
  lines.insert(lines.begin(), stamp + " " + digest);
  if (lines.size() > kMaxLines) lines.resize(kMaxLines);
  const std::string path = folder + kMemory, staged = path + ".new";
  {
    std::ofstream file(staged, std::ios::trunc);
    for (const std::string& line : lines) file << line << "\n";
    if (!file.flush()) return;
  }
  if (rename(staged.c_str(), path.c_str()) != 0) (void)unlink(staged.c_str());
}

// Leaves no pages behind in the file cache: on a small box they would push out those that serve.
bool add_file(const std::string& path, EVP_MD_CTX* context, const std::atomic<bool>& stop) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return false;
  std::vector<unsigned char> block(kBlock);
  for (off_t at = 0;;) {
    if (stop) return false;
    const ssize_t n = read(file.get(), block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n == 0;
    if (EVP_DigestUpdate(context, block.data(), static_cast<size_t>(n)) != 1) return false;
    (void)posix_fadvise(file.get(), at, n, POSIX_FADV_DONTNEED);
    at += n;
  }
}

std::string digest_of(const std::vector<std::string>& paths, const std::atomic<bool>& stop) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (!context || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) return "";
  for (const std::string& path : paths) {
    if (!add_file(path, context.get(), stop)) return "";
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (EVP_DigestFinal_ex(context.get(), digest, &size) != 1) return "";
  std::string hex;
  for (unsigned i = 0; i < size; ++i) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", digest[i]);
    hex += text;
  }
  return hex;
}

}  // namespace

void ModelDigest::want(const std::string& folder, const std::string& stamp,
                       const std::vector<std::string>& paths) {
  if (stamp == stamp_) return;
  stop();
  stamp_ = stamp;
  hex_ = find(folder, stamp);
  if (!hex_.empty()) {
    is_done_ = true;
    return;
  }
  thread_ = std::thread([this, folder, stamp, paths] {
    const sched_param idle{};
    (void)sched_setscheduler(0, SCHED_IDLE, &idle);  // this thread: after everybody who serves
    hex_ = digest_of(paths, stop_);
    if (hex_.empty()) return;
    remember(folder, stamp, hex_);
    is_done_ = true;
  });
}

void ModelDigest::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  stop_ = is_done_ = false;
  stamp_.clear();
}

}  // namespace tandem
