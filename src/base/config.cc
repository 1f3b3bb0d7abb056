#include "base/config.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "base/cpu_list.h"
#include "base/file_io.h"

namespace tandem {
namespace {

// A TOML basic string.
std::string quote(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}
std::string toml_text(bool v) { return v ? "true" : "false"; }
std::string toml_text(int64_t v) { return std::to_string(v); }
std::string toml_text(const std::string& v) { return quote(v); }

std::string where(const std::string& file, const std::string& key, const toml::node& node) {
  return file + ":" + std::to_string(node.source().begin.line) + ": " + key;
}

Status assign(const toml::node& node, const std::string& at, int64_t, int64_t, bool* out) {
  auto v = node.value_exact<bool>();
  if (!v) return invalid_argument(at + " must be true or false");
  *out = *v;
  return ok_status();
}
Status assign(const toml::node& node, const std::string& at, int64_t min, int64_t max, int64_t* out) {
  auto v = node.value_exact<int64_t>();
  std::string range = std::to_string(min) + " to " + std::to_string(max);
  if (!v) return invalid_argument(at + " must be an integer from " + range);
  if (*v < min || *v > max)
    return invalid_argument(at + " must be from " + range + ", got " + std::to_string(*v));
  *out = *v;
  return ok_status();
}
Status assign(const toml::node& node, const std::string& at, int64_t, int64_t, std::string* out) {
  auto v = node.value_exact<std::string>();
  if (!v) return invalid_argument(at + " must be a string in quotes");
  *out = *v;
  return ok_status();
}

Status apply_key(const std::string& section, const std::string& name, const toml::node& node,
                 const std::string& file, Config* config) {
  std::string at = where(file, section + "." + name, node);
#define KEY(type, sec, key, def, min, max, help) \
  if (section == #sec && name == #key) return assign(node, at, min, max, &config->sec##_##key);
#include "base/config_keys.def"
#undef KEY
  return invalid_argument(at + " is not a known key; see tandem.toml for the list");
}

Status apply_table(const toml::table& root, const std::string& file, Config* config) {
  for (auto&& [section, node] : root) {
    const toml::table* table = node.as_table();
    if (table == nullptr)
      return invalid_argument(where(file, std::string(section.str()), node) +
                              " must be inside a [section]");
    for (auto&& [name, value] : *table)
      CHECK_OK(apply_key(std::string(section.str()), std::string(name.str()), value, file, config));
  }
  return ok_status();
}

std::string env_or(const char* name, const std::string& fallback) {
  const char* v = std::getenv(name);
  return v != nullptr && *v != 0 ? v : fallback;
}

// A folder that systemd made for the service (StateDirectory=); the first of a list.
std::string folder_of_service(const char* name) {
  std::string list = env_or(name, "");
  return list.substr(0, list.find(':'));
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> rows;
#define KEY(type, section, name, def, min, max, help) \
  rows.push_back({#section, #name, #type, toml_text(KEY_TYPE_##type(def)), min, max, help});
#include "base/config_keys.def"
#undef KEY
    return rows;
  }();
  return keys;
}

Status config_load_text(const std::string& text, const std::string& name, Config* config) {
  toml::parse_result result = toml::parse(text);
  if (!result) {
    return invalid_argument(name + ":" + std::to_string(result.error().source().begin.line) + ": " +
                            std::string(result.error().description()));
  }
  return apply_table(result.table(), name, config);
}

Status config_load_file(const std::string& path, Config* config) {
  const auto text = read_file(path);
  if (!text.ok()) return {text.status().code(), "configuration: " + text.status().message()};
  return config_load_text(*text, path, config);
}

Status config_set(const std::string& assignment, Config* config) {
  size_t eq = assignment.find('='), dot = assignment.find('.');
  if (eq == std::string::npos || dot == std::string::npos || dot > eq)
    return invalid_argument("\"" + assignment + "\" must have the form section.name=value");
  std::string section = assignment.substr(0, dot), name = assignment.substr(dot + 1, eq - dot - 1);
  std::string value = assignment.substr(eq + 1);
  for (const ConfigKey& key : config_keys()) {
    if (section == key.section && name == key.name && std::string(key.type) == "Text" &&
        (value.empty() || value[0] != '"'))
      value = quote(value);
  }
  return config_load_text("[" + section + "]\n" + name + " = " + value + "\n", "--set", config);
}

std::string config_to_toml(const Config& config) {
  std::string out, section;
#define KEY(type, sec, name, def, min, max, help)                       \
  if (section != #sec) out += "[" #sec "]\n", section = #sec;           \
  out += #name " = " + toml_text(config.sec##_##name) + "\n";
#include "base/config_keys.def"
#undef KEY
  return out;
}

namespace {

Status validate_workers(const Config& c) {
  if ((c.workers_prefill > 0) != (c.workers_decode > 0))
    return invalid_argument("workers.prefill and workers.decode must both be 0 or both at least 1, got " +
                            std::to_string(c.workers_prefill) + " and " + std::to_string(c.workers_decode));
  if (config_both_workers(c) + c.workers_prefill == 0)
    return invalid_argument("workers.both is 0 and there are no prefill and decode workers; nobody would serve");
  auto check = [](const char* key, const std::string& text, int64_t n) {
    auto lists = split_cpu_lists(text, static_cast<int>(n));
    return lists.ok() ? ok_status() : invalid_argument(std::string(key) + ": " + lists.status().message());
  };
  CHECK_OK(check("workers.both_cpus", c.workers_both_cpus, config_both_workers(c)));
  CHECK_OK(check("workers.prefill_cpus", c.workers_prefill_cpus, c.workers_prefill));
  return check("workers.decode_cpus", c.workers_decode_cpus, c.workers_decode);
}

Status validate_gpu(const Config& c) {
  if (c.gpu_device == "none") {
    return c.prefill_placement != "cpu" ? invalid_argument("prefill.placement is \"" + c.prefill_placement + "\" and gpu.device is \"none\"; name a device") : ok_status();
  }
  if (c.prefill_placement == "gpu" && config_both_workers(c) == 0)
    return invalid_argument("prefill.placement is \"gpu\", which is for workers of both roles, and workers.both is 0; with workers.prefill and workers.decode it must be \"cpu\" or \"auto\"");
  if (c.prefill_placement == "auto" && c.workers_decode == 0)
    return invalid_argument("prefill.placement is \"auto\", which is for workers.prefill beside workers.decode, and there are none; workers of both roles have one place, \"cpu\" or \"gpu\"");
  if (c.gpu_device.empty() || c.gpu_device.size() > 2 || c.gpu_device.find_first_not_of("0123456789") != std::string::npos)
    return invalid_argument("gpu.device must be \"none\" or the number of a device, 0 to 99, got \"" + c.gpu_device + "\"");
  if (const std::string& l = c.gpu_layers; l != "auto" && (l.empty() || l.size() > 4 || l.find_first_not_of("0123456789") != std::string::npos ||
                                                           std::stoi(l) < 1 || std::stoi(l) > 1000))
    return invalid_argument("gpu.layers must be \"auto\" or 1 to 1000, got \"" + l + "\"");
  const int64_t n = config_device_workers(c);
  if (n == 0)
    return invalid_argument("gpu.device is " + c.gpu_device + " and no worker would run there: set workers.prefill and workers.decode, or prefill.placement = \"gpu\"");
  if (n > 1 && c.gpu_memory_budget_bytes == 0)
    return invalid_argument(std::to_string(n) + " workers share device " + c.gpu_device + ": set gpu.memory_budget_bytes, which each of them takes");
  return ok_status();
}

}  // namespace

Status config_validate(const Config& c) {
  auto one_of = [](const char* key, const std::string& v, std::initializer_list<const char*> allowed) {
    std::string list;
    for (const char* a : allowed) {
      if (v == a) return ok_status();
      list += std::string(list.empty() ? "" : ", ") + "\"" + a + "\"";
    }
    return invalid_argument(std::string(key) + " must be one of " + list + ", got \"" + v + "\"");
  };
  if (c.cache_page_size_tokens != 16 && c.cache_page_size_tokens != 32)
    return invalid_argument("cache.page_size_tokens must be 16 or 32, got " +
                            std::to_string(c.cache_page_size_tokens));
  CHECK_OK(one_of("prefill.placement", c.prefill_placement, {"cpu", "gpu", "auto"}));
  CHECK_OK(validate_gpu(c));
  if (!config_has_lean_file(c) && c.weights_lean != "nested" && c.weights_lean != "off")
    return invalid_argument("weights.lean must be \"nested\", \"off\" or the absolute path of a GGUF file, got \"" + c.weights_lean + "\"");
  CHECK_OK(one_of("cpu.activations", c.cpu_activations, {"q8", "f32"}));
  CHECK_OK(one_of("cpu.force_isa", c.cpu_force_isa, {"", "ref", "avx2", "avxvnni", "avx512vnni", "avx512bf16", "neon", "neondot", "neoni8mm"}));
  CHECK_OK(one_of("cache.element_type", c.cache_element_type, {"f16", "q8_0"}));
  CHECK_OK(one_of("batch.batching", c.batch_batching, {"continuous", "dynamic", "static", "static-padded"}));
  CHECK_OK(one_of("log.level", c.log_level, {"debug", "info", "warn", "error"}));
  if (c.server_tls_certificate_file.empty() != c.server_tls_key_file.empty())
    return invalid_argument("server.tls_certificate_file and server.tls_key_file must both be set or both be empty");
  if (!c.warmup_prompts.empty() && !c.cache_prefix)
    return invalid_argument("warmup.prompts needs cache.prefix = true; there is no cache to keep them in");
  return validate_workers(c);
}

int64_t config_both_workers(const Config& c) {
  if (c.workers_both >= 0) return c.workers_both;
  return c.workers_prefill > 0 && c.workers_decode > 0 ? 0 : 1;
}

int64_t config_device_workers(const Config& c) {
  if (c.gpu_device == "none") return 0;
  return c.workers_decode + (c.prefill_placement == "gpu" ? config_both_workers(c) : 0);
}

int64_t config_worker_count(const Config& c) {
  return config_both_workers(c) + c.workers_prefill + c.workers_decode;
}

bool config_has_lean_file(const Config& c) { return c.weights_lean.starts_with('/'); }

int64_t config_workers_sharing_cpus(const Config& c) {
  return (c.workers_both_cpus.empty() ? config_both_workers(c) : 0) +
         (c.workers_prefill_cpus.empty() ? c.workers_prefill : 0) +
         (c.workers_decode_cpus.empty() ? c.workers_decode : 0);
}

std::string config_state_dir(const Config& c) {
  if (!c.paths_state_dir.empty()) return c.paths_state_dir;
  if (std::string given = folder_of_service("STATE_DIRECTORY"); !given.empty()) return given;
  if (geteuid() == 0) return "/var/lib/tandem";
  return env_or("XDG_STATE_HOME", env_or("HOME", "/tmp") + "/.local/state") + "/tandem";
}

std::string config_cache_dir(const Config& c) {
  if (!c.paths_cache_dir.empty()) return c.paths_cache_dir;
  if (std::string given = folder_of_service("CACHE_DIRECTORY"); !given.empty()) return given;
  if (geteuid() == 0) return "/var/cache/tandem";
  return env_or("XDG_CACHE_HOME", env_or("HOME", "/tmp") + "/.cache") + "/tandem";
}

}  // namespace tandem
