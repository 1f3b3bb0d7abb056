// Configuration: defaults < profile.toml < tandem.toml < flags (`section.name=value`). Each key is one row
// of config_keys.def. Unknown keys, wrong types and values out of range are errors that name file, key,
// value and range. Plain data, immutable after load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

struct Config {
#define KEY_TYPE_Bool bool
#define KEY_TYPE_Int int64_t
#define KEY_TYPE_Text std::string
#define KEY(type, section, name, def, min, max, help) KEY_TYPE_##type section##_##name = def;
#include "base/config_keys.def"
#undef KEY
};

struct ConfigKey {
  const char* section;
  const char* name;
  const char* type;  // "Bool", "Int", "Text"
  std::string default_text;  // as written in TOML
  int64_t min, max;
  const char* help;
};
const std::vector<ConfigKey>& config_keys();

// Overlays one TOML file. A missing file is an error; callers decide which files are optional.
Status config_load_file(const std::string& path, Config* config);
Status config_load_text(const std::string& text, const std::string& name, Config* config);
// Overlays one `section.name=value` (value in TOML or bare text).
Status config_set(const std::string& assignment, Config* config);
// Values as TOML, in table order (for `tandem bundle`, tests and the worker's copy).
std::string config_to_toml(const Config& config);
// Checks between keys (page size 16 or 32, enumerations). Called by all loads of tandemd and tandem serve.
Status config_validate(const Config& config);

// workers.both with its default resolved.
int64_t config_both_workers(const Config& config);
int64_t config_worker_count(const Config& config);  // of all roles
bool config_has_lean_file(const Config& config);  // weights.lean names a GGUF file
int64_t config_device_workers(const Config& config);  // those that gpu.device is for
int64_t config_workers_sharing_cpus(const Config& config);  // those without a list of processors of their own
// Resolved folders: configured, else systemd's STATE_DIRECTORY and CACHE_DIRECTORY, else /var/... for root, else XDG.
std::string config_state_dir(const Config& config);
std::string config_cache_dir(const Config& config);

}  // namespace tandem
