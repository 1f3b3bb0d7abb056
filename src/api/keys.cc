#include "api/keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <sstream>

#include "base/file_io.h"

namespace tandem::api {
namespace {

constexpr const char* kDefaultUserFile = "/etc/tandem/keys";
constexpr const char* kDefaultAdminFile = "/etc/tandem/admin.key";

bool parse_hex(std::string_view text, std::array<unsigned char, 32>* out) {
  if (text.size() != 64) return false;
  for (size_t i = 0; i < 64; ++i) {
    char c = static_cast<char>(text[i] | 32);
    int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (v < 0) return false;
    (*out)[i / 2] = static_cast<unsigned char>(((*out)[i / 2] << 4) | v);
  }
  return true;
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> parts(1);
  for (char c : line) {
    if (c == ':')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

bool is_name(const std::string& name) {
  if (name.empty() || name.size() > 64) return false;
  for (char c : name) {
    bool ok = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
              c == '-' || c == '.';
    if (!ok) return false;
  }
  return true;
}

// N of "name=N", or 0.
int number_of(const std::string& option, const std::string& name) {
  if (option.compare(0, name.size() + 1, name + "=") != 0) return 0;
  std::string digits = option.substr(name.size() + 1);
  bool ok = !digits.empty() && digits.size() <= 7 && digits.find_first_not_of("0123456789") == std::string::npos;
  return ok && std::stoi(digits) <= 1'000'000 ? std::stoi(digits) : 0;
}

bool apply_option(const std::string& option, KeyEntry* entry) {
  if (auto priority = parse_priority(option)) {
    entry->highest = *priority;
  } else if (option == "filtered" || option == "unfiltered") {
    entry->is_filtered = option == "filtered";
  } else if (int n = number_of(option, "running"); n > 0) {
    entry->limit.max_running = n;
  } else if (int n_a_minute = number_of(option, "per_minute"); n_a_minute > 0) {
    entry->limit.max_per_minute = n_a_minute;
  } else {
    return false;
  }
  return true;
}

Result<std::vector<KeyEntry>> load(const std::string& configured, const char* fallback, bool is_admin) {
  const std::string path = configured.empty() ? fallback : configured;
  const auto text = read_file(path);
  if (configured.empty() && text.status().code() == StatusCode::kNotFound) return std::vector<KeyEntry>{};
  if (!text.ok()) return Status(text.status().code(), "key file: " + text.status().message());
  return parse_key_file(*text, path, is_admin);
}

}  // namespace

std::optional<ipc::Priority> parse_priority(std::string_view name) {
  if (name == "high") return ipc::Priority::kHigh;
  if (name == "normal") return ipc::Priority::kNormal;
  if (name == "low") return ipc::Priority::kLow;
  return std::nullopt;
}

const char* priority_name(ipc::Priority priority) {
  constexpr const char* kNames[] = {"high", "normal", "low"};
  return kNames[static_cast<int>(priority)];
}

Result<std::vector<KeyEntry>> parse_key_file(const std::string& text, const std::string& file, bool is_admin) {
  std::vector<KeyEntry> entries;
  std::istringstream in(text);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    std::string at = file + ":" + std::to_string(number) + ": ";
    std::vector<std::string> parts = split(line);
    if (is_admin && parts.size() == 1) parts.insert(parts.begin(), "admin");
    if (parts.size() < 2) return invalid_argument(at + "must be name:sha256hex, then options, each after a colon");
    KeyEntry entry;
    entry.name = parts[0];
    if (!is_name(entry.name))
      return invalid_argument(at + "the name must be 1 to 64 letters, digits, '.', '_' or '-'");
    if (!parse_hex(parts[1], &entry.digest))
      return invalid_argument(at + "the digest must be 64 hex digits (printf %s KEY | sha256sum)");
    for (size_t i = 2; i < parts.size(); ++i) {
      if (!apply_option(parts[i], &entry))
        return invalid_argument(at + "option " + std::to_string(i - 1) +
                                " must be high, normal, low, filtered, unfiltered, running=N or per_minute=N (1 to 1000000)");
    }
    for (const KeyEntry& other : entries)
      if (other.name == entry.name) return invalid_argument(at + "name given twice: " + entry.name);
    entries.push_back(std::move(entry));
  }
  return entries;
}

KeyRing::KeyRing(const Config& config)
    : user_file_(config.auth_user_keys_file),
      admin_file_(config.auth_admin_key_file),
      keys_(std::make_shared<KeySet>()) {}

Status KeyRing::reload(bool needs_user_key) {
  auto fresh = std::make_shared<KeySet>();
  CHECK_ASSIGN(fresh->users, load(user_file_, kDefaultUserFile, false));
  CHECK_ASSIGN(fresh->admins, load(admin_file_, kDefaultAdminFile, true));
  if (needs_user_key && fresh->users.empty())
    return invalid_argument("auth.user_keys_file has no key, but other machines can reach server.listen; the old keys stay");
  std::lock_guard lock(mutex_);
  keys_ = std::move(fresh);
  return ok_status();
}

std::shared_ptr<const KeySet> KeyRing::snapshot() const {
  std::lock_guard lock(mutex_);
  return keys_;
}

std::optional<Identity> KeyRing::identify(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return std::nullopt;
  for (size_t i = 0; i < kScheme.size(); ++i)
    if ((authorization[i] | 32) != (kScheme[i] | 32)) return std::nullopt;
  std::string_view key = authorization.substr(kScheme.size());
  while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
  if (key.empty()) return std::nullopt;
  std::array<unsigned char, 32> digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  auto keys = snapshot();
  std::optional<Identity> found;
  // Every entry is compared, whichever matches: the time says nothing about which keys exist.
  for (const KeyEntry& entry : keys->users)
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), 32) == 0) found = {entry.name, false, entry.highest, entry.is_filtered, entry.limit};
  for (const KeyEntry& entry : keys->admins)
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), 32) == 0) found = {entry.name, true, entry.highest, entry.is_filtered, entry.limit};
  return found;
}

}  // namespace tandem::api
