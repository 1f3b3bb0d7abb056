// What crosses between tandemd and its workers, as plain structs. Encoded by codec.*, carried by channel.*.
// Both ends come from one build; a version number in Hello refuses a mixed pair all the same. Bytes from the
// other side are foreign bytes: the decoder checks every length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tandem::ipc {

constexpr uint32_t kProtocolVersion = 8;

// What a worker does: all of it; prompts only, lending their K/V; or the rest, taking the K/V over.
enum class Role : uint8_t { kBoth, kPrefill, kDecode };
constexpr const char* kRoleNames[] = {"both", "prefill", "decode"};
inline const char* role_name(Role role) { return kRoleNames[static_cast<int>(role)]; }
inline std::optional<Role> parse_role(std::string_view text) {
  for (int i = 0; i < 3; ++i) {
    if (text == kRoleNames[i]) return static_cast<Role>(i);
  }
  return std::nullopt;
}

// Which set of a model's weights computed which positions of a sequence: ascending positions at which it changes,
// beginning with the full set. {} is all full, {0} all lean, {7, 9} lean at positions 7 and 8.
using WeightBorders = std::vector<uint32_t>;
inline bool ascends(const WeightBorders& borders) {
  return std::adjacent_find(borders.begin(), borders.end(), std::greater_equal<>()) == borders.end();
}
inline bool is_lean_at_end(const WeightBorders& borders) { return borders.size() % 2 == 1; }

enum class Priority : uint8_t { kHigh, kNormal, kLow };
enum class FinishReason : uint8_t {
  kNone, kStop, kLength,      // normal ends
  kDeadline, kCancelled,      // asked for
  kAborted, kFailed,          // drain, our fault
};

struct Sampling {  // fields as model/sampler.h; validated by the API
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  bool ignore_eos = false;
  int32_t n_top_logprobs = -1;  // -1: no log-probabilities
};

struct Logprob {
  int32_t token = 0;
  float logprob = 0;
  std::string bytes;  // the token's bytes
};
struct LogprobEntry {
  Logprob chosen;
  std::vector<Logprob> top;
};

// --- supervisor -> worker ---------------------------------------------------------------------------

// First message. Descriptors of the model's parts are inherited, numbered in argv.
struct Configure {
  uint32_t protocol = kProtocolVersion;
  std::string config_toml;              // config_to_toml() of the supervisor's configuration
  std::vector<std::string> model_names; // one per inherited model descriptor, for messages
  uint64_t generation = 0;              // number of this worker's incarnation
  Role role = Role::kBoth;
  bool is_cache_trusted = false;        // its packed weights were whole since the last unclean stop
  bool is_cache_shared = false;         // other workers map the same file
  bool measures_prompts = false;        // before Ready, for ModelInfo::prompt_token_ns
  int64_t other_bytes = 0;              // PSS of the rest of the process tree: counts in the memory budget
  // Where weights.lean names a file: its parts, as model_names, or why there are none; and its packed weights, as above.
  std::vector<std::string> lean_names{};
  std::string lean_trouble{};
  bool is_lean_cache_trusted = false;
};
// Answer to PoolRequest: the worker's host pool has the size asked for, or why not.
struct PoolGrant {
  int64_t bytes = 0;
  std::string error;  // "": granted
};

// A page of another worker's host pool, lent by its index. `serial` is the slot's when it was lent: it changes
// when the page is given to somebody else, so that a page named too late is found out.
struct LentPage {
  int32_t page = -1;    // -1: left the window, nothing to copy
  uint32_t serial = 0;
};
// K/V of the prompt's positions [first_block * page size, n_tokens), per KV group one page a block. While a
// prompt is computed its full pages are lent as they fill; the last loan is whole: from block 0, the partial
// page too, and the lender keeps its pages until Release.
struct Loan {
  uint32_t source = 0;      // number of the lending worker among the prefill workers; set by tandemd
  uint64_t generation = 0;  // of the lender
  uint32_t first_block = 0, n_tokens = 0;
  bool is_whole = false;
  WeightBorders weight_borders{};  // of positions [0, n_tokens)
  std::vector<std::vector<LentPage>> groups;
};
// To a decode worker, ahead of Submit: pages to copy while there is time. `tokens`: of the loan's blocks.
struct Lend {
  uint64_t id = 0;
  Loan loan;
  std::vector<int32_t> tokens;
};
struct Release {  // to the lender: the pages were copied, or nobody wants them any more
  uint64_t id = 0;
};

// Text or conversation -> token ids, on the worker's I/O thread.
struct Message {
  std::string role, content, name;
};
struct Prepare {
  uint64_t id = 0;
  enum class Kind : uint8_t { kText, kChat, kIds } kind = Kind::kText;
  std::string text;                  // kText
  std::vector<Message> messages;     // kChat
  std::vector<int32_t> ids;          // kIds: checked against the vocabulary
  bool add_special = true;           // kText
  bool parse_special = false;        // kText: /tokenize only
  bool add_generation_prompt = true; // kChat
  bool want_prompt_text = false;     // echo, /apply-template
};
struct Detokenize {
  uint64_t id = 0;
  std::vector<int32_t> ids;
};

// State of one choice at dispatch; empty at first, what is known after a worker's death.
struct ChoiceState {
  uint32_t choice = 0;
  std::vector<int32_t> generated;
  uint64_t bytes_released = 0;
  WeightBorders weight_borders{};  // with tokens: of all positions but the last; they are computed again with these
};
struct Submit {
  uint64_t id = 0;
  std::vector<int32_t> prompt;
  std::vector<ChoiceState> choices;     // unfinished choices only
  Sampling sampling;
  std::vector<std::string> stop;
  uint32_t max_tokens = 0;              // per choice; 0 = score the prompt only (echo)
  bool prompt_logprobs = false;         // echo with logprobs
  uint32_t n_prompt_logprobs_known = 0; // resume: the supervisor has the entries of positions 0..n-1
  Priority priority = Priority::kNormal;
  int64_t waited_us = 0;                // in tandemd's queue, all dispatches together: counts for ageing
  int64_t deadline_us = 0;              // monotonic; the same clock in both processes; 0 = none
  std::optional<Loan> loan;             // to a decode worker: K/V of the whole prompt
};
struct Cancel {
  uint64_t id = 0;
  FinishReason reason = FinishReason::kCancelled;
};
struct SetLogLevel {
  std::string level;
};
// New positions are computed with this set from the next step on. Only to workers that have a lean set.
struct SetWeights {
  bool is_lean = false;
};
struct Shutdown {};  // finish nothing more, flush, exit 0

// --- worker -> supervisor ---------------------------------------------------------------------------

struct Hello {
  uint32_t protocol = kProtocolVersion;
  int32_t pid = 0;
};
// Before Ready: what is being done. A worker that cannot go on sends Fatal, then exits 78 or 70.
struct Progress {
  std::string phase;     // "reading model", "repacking weights", "warming up"
  float fraction = 0;
};
struct Fatal {
  int32_t exit_code = 70;
  std::string message;
};
// What the process tree will hold at most (PSS), predicted before it is taken.
struct MemoryPlan {
  int64_t weights_bytes = 0, kv_pool_bytes = 0, scratch_bytes = 0;
  int64_t process_bytes = 0;   // the worker's program, vocabulary, streams
  int64_t other_bytes = 0;     // tandemd and other workers
  int64_t budget_bytes = 0;    // what it may come to: configured, or the memory there is
  bool is_configured = false;
  int64_t lean_bytes = 0;      // weights from the file of weights.lean
};
struct ModelInfo {
  std::string name, architecture, quantization, device, isa;
  int64_t n_parameters = 0;
  int64_t file_bytes = 0;
  int32_t context_tokens = 0;    // limit in force
  int32_t vocab_size = 0;
  int32_t n_layers = 0;
  int32_t device_layers = 0;     // of them on a device: the last ones
  std::string device_name;       // "NVIDIA GeForce RTX 4060", or empty
  // What a prompt of n tokens takes alone, fixed_us + n * token_ns / 1000, if Configure asked for it; else 0.
  int64_t prompt_fixed_us = 0, prompt_token_ns = 0;
  bool has_chat_template = false;
  std::string chat_template_error;  // why chat is refused, if it is
  int64_t pool_tokens = 0;       // tokens that fit the KV pool for one sequence
  int64_t kv_bytes_per_token = 0;
  int64_t kv_pool_bytes = 0, swap_pool_bytes = 0;
  int64_t weight_bytes = 0;
  int32_t max_batch_size = 0;
  MemoryPlan memory;
  // What a step reads of each set, the time of a step of one token and the perplexity of a text that all models get,
  // where both were measured. The lean set serves if no_lean_reason is empty.
  int64_t full_set_bytes = 0, lean_set_bytes = 0;
  double full_step_ms = 0, lean_step_ms = 0, full_perplexity = 0, lean_perplexity = 0;
  std::string no_lean_reason{};
  std::string lean_file{};       // that the lean set is from; "": it is half of the model's own weights, or there is none
};
struct Ready {
  ModelInfo model;
};
// Some time after Ready: the worker is done with its two files of packed weights (worker/main.cc), those of the model or
// those of weights.lean.
struct WeightsCacheDone {
  bool is_stored = false;  // the new file is complete and on the disk; else it can go
  bool is_whole = false;   // the existing file was checked and is in use
  std::string damage;      // what is wrong with the existing file, which is in use: this worker cannot go on
  bool is_lean = false;    // those of weights.lean
};
struct PrepareReply {
  uint64_t id = 0;
  bool ok = false;
  std::string error;        // one sentence, safe to show: never the client's bytes
  std::string error_code;   // "invalid_prompt", "template_error", "no_chat_template"
  std::vector<int32_t> ids;
  std::string prompt_text;
};
struct DetokenizeReply {
  uint64_t id = 0;
  bool ok = false;
  std::string error;
  std::string text;
};

struct PromptLogprobs {
  uint64_t id = 0;
  uint32_t first_index = 0;               // prompt position of entries[0]; position 0 has an entry without a value
  std::vector<LogprobEntry> entries;
};
// One generated token of one choice. `text` is what became releasable with it: whole code points, nothing
// that could still become a stop string. n_released counts the tokens of which a byte has been released.
struct TokenEvent {
  uint64_t id = 0;
  uint32_t choice = 0;
  uint32_t index = 0;               // 0-based index among the choice's generated tokens
  int32_t token = -1;               // -1: no token, only a finish (end token drawn, cancel, deadline)
  std::string text;
  uint32_t n_released = 0;
  std::optional<LogprobEntry> logprob;
  FinishReason finish = FinishReason::kNone;
  std::string error;                // with kFailed
  bool is_lean = false;             // the lean set computed the position that this comes from
};
struct TokenEvents {
  std::vector<TokenEvent> events;
};
// Progress of a prompt, after each chunk; the first one carries the cached count.
struct PromptProgress {
  uint64_t id = 0;
  uint32_t n_done = 0, n_total = 0, n_cached = 0;
  WeightBorders weight_borders{};  // of positions [0, n_done)
};
// Every 250 ms from the I/O thread, with the engine thread's own signs of life.
struct Heartbeat {  // counters since the worker's start, but for gauges
  uint64_t engine_turns = 0;        // turns of the engine loop, also when idle
  uint64_t steps = 0;               // model steps done: progress
  uint64_t prompt_tokens = 0, generated_tokens = 0;  // since start
  uint64_t preemptions = 0, swaps = 0;     // sequences computed again, sequences moved to the swap tier
  uint32_t n_running = 0, n_waiting = 0;   // sequences
  int64_t pages_used = 0, pages_free = 0, pages_shared = 0;  // all groups together
  int64_t pages_swapped = 0;               // held in the swap tier, not among the used
  uint32_t batch_limit = 0;
  double prefill_seconds = 0, decode_seconds = 0, sampling_seconds = 0;
  uint32_t last_batch = 0;
  uint64_t computed_tokens = 0;     // of requests' prompts and forced chunks; what was cached or copied is not in it
  uint64_t pages_readopted = 0;     // sealed by an earlier life of this worker and found whole
  uint64_t pages_imported = 0, bytes_imported = 0;  // copied from lent pages
  double import_seconds = 0;
  int64_t pages_lent = 0;           // gauge: lent and not released
};
// A worker asks for its host pool when it knows the size, and waits for PoolGrant.
struct PoolRequest {
  int64_t bytes = 0;
};
struct Lent {
  uint64_t id = 0;
  Loan loan;
};
struct ImportDone {  // the whole loan of this request was copied
  uint64_t id = 0;
};
// The worker gives a request back, all its choices: to be dispatched again from what is known of it.
struct Returned {
  uint64_t id = 0;
  bool is_preempted = false;  // for want of pages; else the loan was no good
  std::string reason;
};

using ToWorker = std::variant<Configure, Prepare, Detokenize, Submit, Cancel, SetLogLevel, Shutdown, PoolGrant, Lend,
                              Release, SetWeights>;
using FromWorker = std::variant<Hello, Progress, Fatal, Ready, PrepareReply, DetokenizeReply, PromptLogprobs,
                                TokenEvents, PromptProgress, Heartbeat, WeightsCacheDone, PoolRequest, Lent,
                                ImportDone, Returned>;

}  // namespace tandem::ipc
