// API keys: a file of user keys and a file of the admin key, as SHA-256 digests. Keys are never logged, and
// compared in constant time. Thread-safe.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/key_limits.h"
#include "base/config.h"
#include "base/status.h"
#include "ipc/messages.h"

namespace tandem::api {

struct KeyEntry {
  std::string name;
  std::array<unsigned char, 32> digest{};
  ipc::Priority highest = ipc::Priority::kHigh;
  std::optional<bool> is_filtered;  // absent: as filter.all_clients says
  KeyLimit limit;
};

struct KeySet {
  std::vector<KeyEntry> users, admins;
};

struct Identity {
  std::string name;
  bool is_admin = false;
  ipc::Priority highest = ipc::Priority::kHigh;
  std::optional<bool> is_filtered;
  KeyLimit limit;
};

// `name:sha256hex` a line, then, each after a colon and in any order: high, normal or low; filtered or unfiltered;
// running=N; per_minute=N. `#` begins a comment line. `file` is for messages, which give the line's number but never its
// text. An admin file may leave out the name.
Result<std::vector<KeyEntry>> parse_key_file(const std::string& text, const std::string& file, bool is_admin);

class KeyRing {
 public:
  explicit KeyRing(const Config& config);
  // Reads both files; on an error the old keys stay. A configured file must exist, the default ones need not.
  // `needs_user_key`: files without a user key are an error (reload on an address others can reach).
  Status reload(bool needs_user_key = false);
  bool has_user_keys() const { return !snapshot()->users.empty(); }
  bool has_admin_keys() const { return !snapshot()->admins.empty(); }
  bool has_keys() const { return has_user_keys() || has_admin_keys(); }
  // The value of an Authorization header. Empty: not a key of ours.
  std::optional<Identity> identify(std::string_view authorization) const;

 private:
  std::shared_ptr<const KeySet> snapshot() const;
  const std::string user_file_, admin_file_;
  mutable std::mutex mutex_;  // guards keys_
  std::shared_ptr<const KeySet> keys_;
};

std::optional<ipc::Priority> parse_priority(std::string_view name);
const char* priority_name(ipc::Priority priority);

}  // namespace tandem::api
