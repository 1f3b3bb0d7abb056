// The verbs of the `tandem` command: what main.cc parsed, and one function each. All print results
// on stdout, everything else on stderr, and return the process's exit code (0 good, 1 the verb
// failed, 2 wrong use).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::ctl {

struct ServeOptions {
  std::string model, state_dir, config_file, listen_host = "127.0.0.1";
  std::optional<int> port;
  std::vector<std::string> settings;  // section.key=value, the last word
};
// Replaces this process by tandemd; returns only if that fails.
int verb_serve(const ServeOptions& options);
// tandemd's arguments for these options, without the program's name.
std::vector<std::string> tandemd_arguments(const ServeOptions& options);

struct ServerOptions {
  std::string url = "http://127.0.0.1:8080";
  std::string key;
};

struct ChatOptions {
  ServerOptions server;
  std::string system;
  std::vector<std::string>
      prompt;  // words; empty: lines from stdin, one turn each; "-": all of stdin
  std::optional<int> max_tokens;
  std::optional<double> temperature;
  std::optional<uint64_t> seed;
};
int verb_chat(const ChatOptions& options);

struct LogOptions {
  ServerOptions server;
  std::string database;  // not empty: read this file instead of asking a server
  std::string since, status, client;
  int limit = 20;
  bool json = false;
};
int verb_log(const LogOptions& options);

struct StatusOptions {
  ServerOptions server;
  bool watch = false;  // again every 2 s, until interrupted
  bool json = false;   // the server's document as it is
};
int verb_status(const StatusOptions& options);

struct DegradeOptions {
  ServerOptions server;
  std::string rung;
  std::string pin;  // "on", "off", "clear"
  bool is_off = false;
};
int verb_degrade(const DegradeOptions& options);

struct BundleOptions {
  ServerOptions server;
  std::string output;  // empty: tandem-bundle-TIME.tar.gz here
  std::string model, state_dir, config_file;  // as for doctor
};
int verb_bundle(const BundleOptions& options);

struct InspectOptions {
  std::string model;
  bool json = false;
};
int verb_inspect(const InspectOptions& options);

struct TokenizeOptions {
  std::string model, text;  // "-": stdin
  bool ids_only = false, no_special = false, parse_special = false;
};
int verb_tokenize(const TokenizeOptions& options);

struct BenchOptions {
  std::string model, batches = "1", force_isa, activations = "q8", weights = "full";
  std::string roles;                  // not empty: whole servers of these workers, see bench_roles.h
  std::vector<std::string> settings;  // section.key=value for those servers
  int prompt = 512, gen = 128, repeat = 3, chunk = 256, threads = 0;
  bool json = false;
};
int verb_bench(const BenchOptions& options);

struct EvalOptions {
  std::string model, text_file, force_isa, activations = "q8", weights = "full";
  int64_t n_tokens = 0;  // 0: all
  int threads = 0;
  bool json = false;
};
int verb_eval(const EvalOptions& options);

struct QuantizeOptions {
  std::string model, type, out;
  std::optional<std::string> calibration_file;  // text whose activations weigh the columns
  int64_t calibration_tokens = 4096;
  int threads = 0;
  bool is_forced = false;  // replace what is there
  bool json = false;
};
int verb_quantize(const QuantizeOptions& options);

struct DoctorOptions {
  ServerOptions server;  // looked at if it answers
  std::string model, state_dir, config_file, force_isa;
  int threads = 0;
  bool wants_profile = false;  // only propose one of the shipped profiles
};
int verb_doctor(const DoctorOptions& options);

struct ModelOptions {
  std::string action;  // "add", "list", "default"
  std::string source;  // path, URL or "pypi:NAME[==VERSION]"
  std::string name, sha256, state_dir, config_file;
  bool keep_default = false;
};
int verb_model(const ModelOptions& options);

struct ConfigureOptions {
  std::string listen;                    // not empty: set the address; else a key
  std::string key_name, root;            // root: before every path; not empty: systemd is not told
  std::vector<std::string> key_options;  // as in a key file behind the hash
  bool is_admin = false, is_removal = false;
};
int verb_configure(const ConfigureOptions& options);

}  // namespace tandem::ctl
