#include "ctl/download.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <sstream>

#include "base/file_io.h"
#include "base/unique_fd.h"
#include "ctl/progress.h"

namespace tandem::ctl {

namespace {

using Curl = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
using List = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

constexpr int64_t kKeptBytes = 64 << 20;  // written through to the disk at a time
constexpr long kStallSeconds = 60;  // no byte for so long: given up, to be gone on with later

Curl make(const std::string& url, char* error) {
  Curl curl(curl_easy_init(), curl_easy_cleanup);
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(curl.get(), CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, 30L);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_USERAGENT, "tandem/" TANDEM_VERSION);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, error);
  return curl;
}

struct Transfer {
  CURL* curl = nullptr;
  const ModelStore* store = nullptr;
  int fd = -1;
  std::string note;
  int64_t begin = 0, at = 0, kept = 0;  // bytes of the file
  bool is_begun = false;
  std::string etag;
  Status status;
  Progress progress{"downloading", 0};
};

// Goes on with what is surely on the disk, and only where a (strong) mark tells what it belongs to: the note beside the
// file, "BYTES ETAG".
int64_t kept_bytes(const std::string& note, std::string* etag) {
  std::istringstream line(first_line(note).value_or(""));
  int64_t bytes = 0;
  if (!(line >> bytes >> std::ws) || !std::getline(line, *etag) || etag->compare(0, 2, "W/") == 0) return 0;
  return std::max<int64_t>(bytes, 0);
}

// Failing costs only that the next run begins earlier.
void keep(Transfer* t) {
  if (fsync(t->fd) == 0) (void)replace_note(t->note, std::to_string(t->at) + " " + t->etag + "\n").ok();
  t->kept = t->at;
}

// Before the first byte: did the server go on where we asked, and does the rest fit?
Status begin(Transfer* t) {
  long code = 0;
  curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
  if (t->begin > 0 && code != 206) {  // the file has changed, or the server knows no ranges
    t->begin = t->at = 0;
    unlink(t->note.c_str());
    if (ftruncate(t->fd, 0) != 0) return errno_status(errno, "cannot begin again");
  }
  curl_off_t rest = -1;
  curl_easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &rest);
  if (rest > 0) {
    t->progress.set_total(t->begin + rest);
    CHECK_OK(t->store->check_space(rest));
  }
  return ok_status();
}

size_t on_bytes(char* bytes, size_t, size_t n, void* user) {
  auto* t = static_cast<Transfer*>(user);
  if (!t->is_begun) {
    t->is_begun = true;
    if (t->status = begin(t); !t->status.ok()) return 0;
    t->kept = t->begin;
  }
  if (t->status = write_all_at(t->fd, t->at, {bytes, n}, "the download"); !t->status.ok()) return 0;
  t->at += static_cast<int64_t>(n);
  t->progress.at(t->at);
  if (t->at - t->kept >= kKeptBytes) keep(t);
  return n;
}

size_t on_header(char* bytes, size_t, size_t n, void* user) {
  std::string line(bytes, n);
  if (line.compare(0, 5, "HTTP/") == 0) static_cast<Transfer*>(user)->etag.clear();  // of a redirection
  if (n > 6 && strncasecmp(bytes, "etag:", 5) == 0) {
    size_t first = line.find_first_not_of(" \t", 5), last = line.find_last_not_of(" \r\n\t");
    if (first != std::string::npos && last >= first) static_cast<Transfer*>(user)->etag = line.substr(first, last - first + 1);
  }
  return n;
}

}  // namespace

Status download(const std::string& url, const std::string& to, const ModelStore& store) {
  UniqueFd fd(open(to.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return errno_status(errno, "cannot create " + to);
  Transfer t;
  t.store = &store;
  t.fd = fd.get();
  t.note = to + ".etag";
  std::string etag;
  t.begin = t.at = std::min<int64_t>(kept_bytes(t.note, &etag), lseek(fd.get(), 0, SEEK_END));
  if (ftruncate(fd.get(), t.begin) != 0) return errno_status(errno, "cannot write " + to);
  char error[CURL_ERROR_SIZE] = "";
  Curl curl = make(url, error);
  t.curl = curl.get();
  List headers(nullptr, curl_slist_free_all);
  if (t.begin > 0) {
    curl_easy_setopt(curl.get(), CURLOPT_RANGE, (std::to_string(t.begin) + "-").c_str());
    headers.reset(curl_slist_append(nullptr, ("If-Range: " + etag).c_str()));
    curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  }
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, on_bytes);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &t);
  curl_easy_setopt(curl.get(), CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl.get(), CURLOPT_HEADERDATA, &t);
  CURLcode code = curl_easy_perform(curl.get());
  if (t.is_begun) keep(&t);
  if (!t.status.ok()) return t.status;
  long answer = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &answer);
  if (code != CURLE_OK && answer == 416 && t.begin > 0) return ok_status();  // all of it is there already
  if (code != CURLE_OK)
    return unavailable("cannot download " + url + ": " + (error[0] ? error : curl_easy_strerror(code)) + "; " +
                       std::to_string(t.at >> 20) + " MiB are kept, run this again to go on");
  return ok_status();
}

Result<std::string> download_text(const std::string& url, size_t max_bytes) {
  char error[CURL_ERROR_SIZE] = "";
  Curl curl = make(url, error);
  struct Text {
    std::string bytes;
    size_t max;
  } text{"", max_bytes};
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, +[](char* bytes, size_t, size_t n, void* user) -> size_t {
    auto* t = static_cast<Text*>(user);
    if (t->bytes.size() + n > t->max) return 0;
    t->bytes.append(bytes, n);
    return n;
  });
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &text);
  if (CURLcode code = curl_easy_perform(curl.get()); code != CURLE_OK)
    return unavailable("cannot download " + url + ": " + (error[0] ? error : curl_easy_strerror(code)));
  return text.bytes;
}

}  // namespace tandem::ctl
