// A real tandem-worker over its channel: life and death of the process, and texts that survive kills byte for
// byte. With the tiny models of tests/golden/families; cases tagged golden run SmolLM2 from TANDEM_MODELS_DIR.
#include <catch2/catch.hpp>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "tokenizer/utf8.h"
#include "worker_client.h"

namespace tandem {
namespace {

using Requests = std::map<uint64_t, ClientRequest>;

std::string tiny_model(const std::string& name) {
  return std::string(TANDEM_SOURCE_DIR) + "/tests/golden/families/" + name + ".gguf";
}

ClientRequest make_request(std::vector<int32_t> prompt, uint32_t max_tokens, float temperature, uint64_t seed,
                           int n_choices = 1) {
  ClientRequest r;
  r.submit.prompt = std::move(prompt);
  r.submit.max_tokens = max_tokens;
  r.submit.sampling.temperature = temperature;
  r.submit.sampling.seed = seed;
  r.submit.sampling.ignore_eos = seed % 2 == 0;
  for (int i = 0; i < n_choices; ++i) r.choices[static_cast<uint32_t>(i)];
  return r;
}

void submit_unfinished(WorkerClient& worker, Requests& requests) {
  for (auto& [id, r] : requests) {
    r.submit.id = id;
    if (!r.is_finished()) worker.send(r.resume());
  }
}

// Takes messages until all have ended, `n_events` token events have come, or the worker is gone.
void take_events(WorkerClient& worker, Requests& requests, int n_events) {
  auto unfinished = [&] {
    return std::any_of(requests.begin(), requests.end(), [](const auto& r) { return !r.second.is_finished(); });
  };
  while (n_events > 0 && unfinished()) {
    auto message = worker.next();
    if (!message) return;
    if (auto* tokens = std::get_if<ipc::TokenEvents>(&*message)) {
      for (const ipc::TokenEvent& e : tokens->events) requests.at(e.id).take(e), --n_events;
    } else if (auto* prompt = std::get_if<ipc::PromptLogprobs>(&*message)) {
      requests.at(prompt->id).take(*prompt);
    }
  }
}

void run_undisturbed(const std::string& model, const std::string& config, Requests& requests) {
  WorkerClient worker(model, config);
  worker.wait_ready();
  submit_unfinished(worker, requests);
  take_events(worker, requests, INT32_MAX);
  for (const auto& [id, r] : requests) REQUIRE(r.is_finished());
}

// Kills the worker after random numbers of events. Sometimes what it had sent is still read, sometimes not.
int run_with_kills(const std::string& model, const std::string& config, Requests& requests, int n_kills,
                   int most_events, uint32_t seed) {
  std::mt19937 rng(seed);
  int n_hit = 0;
  for (int i = 0; i < n_kills; ++i) {
    WorkerClient worker(model, config);
    worker.wait_ready();
    submit_unfinished(worker, requests);
    take_events(worker, requests, static_cast<int>(rng() % static_cast<unsigned>(most_events)));
    worker.kill(SIGKILL);
    if (rng() % 2 == 0) take_events(worker, requests, INT32_MAX);  // until the end of the stream
    CHECK(worker.wait_exit() == 128 + SIGKILL);
    for (const auto& [id, r] : requests) n_hit += !r.is_finished();
  }
  run_undisturbed(model, config, requests);
  return n_hit;
}

// A stop string out of the middle of a text, of several characters, cut at whole ones.
std::string piece_of(const std::string& text) {
  size_t begin = text.size() / 2;
  while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
  size_t end = std::min(text.size(), begin + 7);
  while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
  return text.substr(begin, end - begin);
}

void compare(const Requests& expected, const Requests& actual) {
  for (const auto& [id, e] : expected) {
    const ClientRequest& a = actual.at(id);
    CHECK(a.prompt_logprobs == e.prompt_logprobs);
    for (const auto& [number, choice] : e.choices) {
      INFO("request " << id << " choice " << number);
      const ClientRequest::Choice& other = a.choices.at(number);
      CHECK(other.text == choice.text);
      CHECK(other.tokens == choice.tokens);
      CHECK(other.finish == choice.finish);
      CHECK(other.n_released == choice.n_released);
      CHECK(other.logprobs == choice.logprobs);
      CHECK(utf8_valid_prefix(choice.text) == choice.text.size());
    }
  }
}

// Undisturbed, then with stop strings, then the same with kills: byte for byte.
void check_survives_kills(const std::string& model, const std::string& config, const Requests& requests,
                          int n_kills, int most_events) {
  Requests plain = requests;
  run_undisturbed(model, config, plain);
  Requests stopped = requests;
  for (auto& [id, r] : stopped) {
    if (id % 3 == 0) r.submit.stop = {"never so", piece_of(plain.at(id).choices.at(0).text)};
  }
  Requests killed = stopped;
  run_undisturbed(model, config, stopped);
  int n_stops = 0;
  for (const auto& [id, r] : stopped) {
    const ClientRequest::Choice& c = r.choices.at(0);
    const std::string& before = plain.at(id).choices.at(0).text;
    REQUIRE(before.compare(0, c.text.size(), c.text) == 0);  // a prefix, shorter by the stop string at least
    if (r.submit.stop.empty()) continue;
    n_stops += c.finish == ipc::FinishReason::kStop;
    CHECK(c.text == before.substr(0, before.find(r.submit.stop[1])));
  }
  CHECK(n_stops >= 4);
  int n_hit = run_with_kills(model, config, killed, n_kills, most_events, 42);
  CHECK(n_hit > n_kills);  // kills hit running requests
  compare(stopped, killed);
}

Requests sixteen(const std::vector<std::vector<int32_t>>& prompts, uint32_t max_tokens) {
  Requests requests;
  for (uint64_t id = 0; id < 16; ++id) {
    ClientRequest r = make_request(prompts[id % prompts.size()], max_tokens + static_cast<uint32_t>(id),
                                   id % 2 == 0 ? 0.0f : 0.9f, id + 7, id % 5 == 4 ? 2 : 1);
    if (id % 4 == 1) r.submit.sampling.n_top_logprobs = 2;
    if (id % 8 == 5) r.submit.prompt_logprobs = true;
    if (id % 7 == 3) r.submit.sampling.repetition_penalty = 1.2f;
    requests[id + 1] = r;
  }
  return requests;
}

}  // namespace

TEST_CASE("sixteen requests survive ten kills byte for byte, on tiny models") {
  // The texts of random weights are full of half characters.
  for (const char* name : {"llama", "gemma3"}) {
    INFO(name);
    std::string config = "[batch]\nmax_batch_size = 8\nprefill_chunk_tokens = 16\n";
    std::vector<std::vector<int32_t>> prompts;
    {
      WorkerClient worker(tiny_model(name), config);
      worker.wait_ready();
      prompts.push_back(tokenize(worker, "The quick brown fox"));
      std::string longer;
      for (int i = 0; i < 12; ++i) longer += "jumps over the lazy dog 🙂 ";
      prompts.push_back(tokenize(worker, longer));
    }
    check_survives_kills(tiny_model(name), config, sixteen(prompts, 60), 10, 200);
  }
}

TEST_CASE("greedy texts are the same alone, in a full batch, and through a tiny pool") {
  std::vector<std::vector<int32_t>> prompts = {{5, 6, 7, 8}, std::vector<int32_t>(90, 70)};
  Requests together = sixteen(prompts, 40);
  run_undisturbed(tiny_model("gemma3"), "", together);
  Requests alone = sixteen(prompts, 40);
  run_undisturbed(tiny_model("gemma3"), "[batch]\nmax_batch_size = 1\nprefill_chunk_tokens = 16\n", alone);
  compare(together, alone);
  Requests squeezed = sixteen(prompts, 40);
  WorkerClient worker(tiny_model("gemma3"), "[cache]\nkv_pool_bytes = 150000\n[batch]\nprefill_chunk_tokens = 32\n");
  worker.wait_ready();
  submit_unfinished(worker, squeezed);
  take_events(worker, squeezed, INT32_MAX);
  while (worker.last_heartbeat.generated_tokens < 16 * 40) REQUIRE(worker.next_of_any_kind());
  CHECK(worker.last_heartbeat.preemptions > 0);
  compare(together, squeezed);
}

TEST_CASE("a cancelled request frees its pages at once and says so; its neighbour goes on") {
  WorkerClient worker(tiny_model("llama"));
  worker.wait_ready();
  Requests requests;
  requests[1] = make_request({5, 6, 7}, 1900, 0, 2);
  requests[2] = make_request({5, 6, 7}, 300, 0, 2);
  submit_unfinished(worker, requests);
  take_events(worker, requests, 20);
  worker.send(ipc::Cancel{1, ipc::FinishReason::kCancelled});
  take_events(worker, requests, INT32_MAX);
  CHECK(requests[1].choices[0].finish == ipc::FinishReason::kCancelled);
  CHECK(requests[1].choices[0].tokens.size() < 1900);
  CHECK(requests[2].choices[0].tokens.size() == 300);
  worker.last_heartbeat.pages_used = 1;
  while (worker.last_heartbeat.pages_used != 0) REQUIRE(worker.next_of_any_kind());
  CHECK(worker.last_heartbeat.n_running == 0);
}

TEST_CASE("a deadline ends a request with what it has") {
  WorkerClient worker(tiny_model("llama"));
  worker.wait_ready();
  Requests requests;
  requests[1] = make_request({5, 6, 7}, 2000, 0, 2);
  requests[1].submit.deadline_us = monotonic_us() + 5'000;
  requests[2] = make_request({5, 6, 7}, 2000, 0, 2);
  requests[2].submit.deadline_us = 1;  // long past
  submit_unfinished(worker, requests);
  take_events(worker, requests, INT32_MAX);
  CHECK(requests[2].choices[0].finish == ipc::FinishReason::kDeadline);
  CHECK(requests[2].choices[0].tokens.empty());
  CHECK((requests[1].choices[0].finish == ipc::FinishReason::kDeadline || requests[1].choices[0].tokens.size() == 2000));
}

TEST_CASE("start-up reports what it does; SIGTERM is the supervisor's business; Shutdown and end of file end it") {
  WorkerClient worker(tiny_model("llama"), "[model]\nname = \"tiny\"\n");
  worker.wait_ready();
  CHECK(worker.model->name == "tiny");
  CHECK((worker.model->architecture == "llama" && worker.model->has_chat_template));
  CHECK((worker.model->pool_tokens == worker.model->context_tokens && worker.model->kv_bytes_per_token > 0));
  CHECK(worker.phases == std::vector<std::string>{"reading model", "repacking weights", "warming up", "measuring weight sets",
                                                   "running each batch size"});
  worker.kill(SIGTERM);
  worker.kill(SIGINT);
  CHECK(!tokenize(worker, "still here").empty());
  worker.send(ipc::Shutdown{});
  CHECK(worker.wait_exit() == 0);

  WorkerClient orphan(tiny_model("llama"));
  orphan.wait_ready();
  orphan.close_channel();
  CHECK(orphan.wait_exit() == 0);
}

TEST_CASE("the whole KV pool is committed when the worker is ready") {
  UniqueFd pool(memfd_create("worker_process_test", MFD_CLOEXEC));
  WorkerClient worker(tiny_model("llama"), "[batch]\nmax_batch_size = 256\n[cache]\nkv_pool_bytes = 400000000\n", pool.get());
  worker.wait_ready();
  struct stat st{};
  REQUIRE(fstat(pool.get(), &st) == 0);
  CHECK(st.st_size >= 100'000'000);
  CHECK(st.st_blocks * 512 >= st.st_size);
}

TEST_CASE("nonsense on the channel is our bug: exit 70, with the reason") {
  WorkerClient worker(tiny_model("llama"));
  worker.wait_ready();
  worker.send_raw("\x63nonsense");
  auto message = worker.next();
  REQUIRE(message);
  CHECK(std::get<ipc::Fatal>(*message).message.find("unknown") != std::string::npos);
  CHECK(worker.wait_exit() == 70);
}

TEST_CASE("a bad model or configuration is told and exits 78") {
  std::string path = "/tmp/tandem_bad_model_" + std::to_string(getpid()) + ".gguf";
  std::ifstream in(tiny_model("llama"), std::ios::binary);
  std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  struct Row { std::string bytes, says; };
  const Row rows[] = {{"", "empty"}, {"<html>not a model</html>", "GGUF"}, {whole.substr(0, whole.size() - 1), "truncated"}};
  for (const Row& row : rows) {
    std::ofstream(path, std::ios::binary) << row.bytes;
    WorkerClient worker(path);
    auto message = worker.next();
    REQUIRE(message);
    auto& fatal = std::get<ipc::Fatal>(*message);
    INFO(fatal.message);
    CHECK(fatal.message.find(row.says) != std::string::npos);
    CHECK(fatal.exit_code == 78);
    CHECK(worker.wait_exit() == 78);
  }
  std::remove(path.c_str());
  WorkerClient worker(tiny_model("llama"), "[model]\ncontext_tokens = 9999999\n");
  auto message = worker.next();
  REQUIRE(message);
  CHECK(std::get<ipc::Fatal>(*message).message.find("model.context_tokens must be 0 to") != std::string::npos);
  CHECK(worker.wait_exit() == 78);
}

TEST_CASE("sixteen requests survive kills byte for byte, on SmolLM2", "[.golden]") {
  const char* folder = std::getenv("TANDEM_MODELS_DIR");
  INFO("TANDEM_MODELS_DIR must name the folder of the real models");
  REQUIRE(folder != nullptr);
  std::string model = std::string(folder) + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  std::string config = "[cache]\nkv_pool_bytes = 120000000\n";
  std::vector<std::vector<int32_t>> prompts;
  {
    WorkerClient worker(model, config);
    worker.wait_ready();
    for (const char* text : {"The alphabet: A, B, C, D,", "Copy: 🙂🎉🙂🎉🙂🎉🙂🎉🙂🎉🙂🎉", "Once upon a time, in a small village,",
                             "<|im_start|>user\nWrite a poem about rain.<|im_end|>\n<|im_start|>assistant\n"})
      prompts.push_back(tokenize(worker, text));
  }
  Requests requests = sixteen(prompts, 24);
  check_survives_kills(model, config, requests, 5, 300);
}

}  // namespace tandem
