// Encoding by field lists: fields_of() names every field of a struct once, Writer and Reader walk the same
// list, so the two directions cannot drift apart. A struct whose list misses a field does not compile.
#include "ipc/codec.h"

#include <bit>
#include <concepts>
#include <cstring>
#include <tuple>
#include <type_traits>

namespace tandem::ipc {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in memory");

template <typename M, typename T>
concept Is = std::same_as<std::remove_const_t<M>, T>;

template <Is<Sampling> M>
auto fields_of(M& m) {
  return std::tie(m.temperature, m.top_p, m.min_p, m.top_k, m.repetition_penalty, m.presence_penalty,
                  m.frequency_penalty, m.seed, m.logit_bias, m.ignore_eos, m.n_top_logprobs);
}
template <Is<Logprob> M>
auto fields_of(M& m) { return std::tie(m.token, m.logprob, m.bytes); }
template <Is<LogprobEntry> M>
auto fields_of(M& m) { return std::tie(m.chosen, m.top); }
template <Is<Configure> M>
auto fields_of(M& m) {
  return std::tie(m.protocol, m.config_toml, m.model_names, m.generation, m.is_cache_trusted, m.is_cache_shared, m.measures_prompts,
                  m.other_bytes, m.role, m.lean_names, m.lean_trouble, m.is_lean_cache_trusted);
}
template <Is<Message> M>
auto fields_of(M& m) { return std::tie(m.role, m.content, m.name); }
template <Is<Prepare> M>
auto fields_of(M& m) {
  return std::tie(m.id, m.kind, m.text, m.messages, m.ids, m.add_special, m.parse_special,
                  m.add_generation_prompt, m.want_prompt_text);
}
template <Is<Detokenize> M>
auto fields_of(M& m) { return std::tie(m.id, m.ids); }
template <Is<ChoiceState> M>
auto fields_of(M& m) { return std::tie(m.choice, m.generated, m.bytes_released, m.weight_borders); }
template <Is<Submit> M>
auto fields_of(M& m) {
  return std::tie(m.id, m.prompt, m.choices, m.sampling, m.stop, m.max_tokens, m.prompt_logprobs,
                  m.n_prompt_logprobs_known, m.priority, m.waited_us, m.deadline_us, m.loan);
}
template <Is<PoolGrant> M>
auto fields_of(M& m) { return std::tie(m.bytes, m.error); }
template <Is<LentPage> M>
auto fields_of(M& m) { return std::tie(m.page, m.serial); }
template <Is<Loan> M>
auto fields_of(M& m) {
  return std::tie(m.source, m.generation, m.first_block, m.n_tokens, m.is_whole, m.weight_borders, m.groups);
}
template <Is<Lend> M>
auto fields_of(M& m) { return std::tie(m.id, m.loan, m.tokens); }
template <Is<Release> M>
auto fields_of(M& m) { return std::tie(m.id); }
template <Is<PoolRequest> M>
auto fields_of(M& m) { return std::tie(m.bytes); }
template <Is<Lent> M>
auto fields_of(M& m) { return std::tie(m.id, m.loan); }
template <Is<ImportDone> M>
auto fields_of(M& m) { return std::tie(m.id); }
template <Is<Returned> M>
auto fields_of(M& m) { return std::tie(m.id, m.is_preempted, m.reason); }
template <Is<Cancel> M>
auto fields_of(M& m) { return std::tie(m.id, m.reason); }
template <Is<SetLogLevel> M>
auto fields_of(M& m) { return std::tie(m.level); }
template <Is<SetWeights> M>
auto fields_of(M& m) { return std::tie(m.is_lean); }
template <Is<Shutdown> M>
auto fields_of(M&) { return std::tie(); }
template <Is<Hello> M>
auto fields_of(M& m) { return std::tie(m.protocol, m.pid); }
template <Is<Progress> M>
auto fields_of(M& m) { return std::tie(m.phase, m.fraction); }
template <Is<Fatal> M>
auto fields_of(M& m) { return std::tie(m.exit_code, m.message); }
template <Is<MemoryPlan> M>
auto fields_of(M& m) {
  return std::tie(m.weights_bytes, m.kv_pool_bytes, m.scratch_bytes, m.process_bytes, m.other_bytes, m.budget_bytes,
                  m.is_configured, m.lean_bytes);
}
template <Is<ModelInfo> M>
auto fields_of(M& m) {
  return std::tie(m.name, m.architecture, m.quantization, m.device, m.isa, m.n_parameters, m.file_bytes,
                  m.context_tokens, m.vocab_size, m.n_layers, m.device_layers, m.device_name, m.prompt_fixed_us, m.prompt_token_ns, m.has_chat_template, m.chat_template_error,
                  m.pool_tokens, m.kv_bytes_per_token, m.kv_pool_bytes, m.swap_pool_bytes, m.weight_bytes, m.max_batch_size,
                  m.memory, m.full_set_bytes, m.lean_set_bytes, m.full_step_ms, m.lean_step_ms, m.full_perplexity, m.lean_perplexity,
                  m.no_lean_reason, m.lean_file);
}
template <Is<Ready> M>
auto fields_of(M& m) { return std::tie(m.model); }
template <Is<WeightsCacheDone> M>
auto fields_of(M& m) { return std::tie(m.is_stored, m.is_whole, m.damage, m.is_lean); }
template <Is<PrepareReply> M>
auto fields_of(M& m) { return std::tie(m.id, m.ok, m.error, m.error_code, m.ids, m.prompt_text); }
template <Is<DetokenizeReply> M>
auto fields_of(M& m) { return std::tie(m.id, m.ok, m.error, m.text); }
template <Is<PromptLogprobs> M>
auto fields_of(M& m) { return std::tie(m.id, m.first_index, m.entries); }
template <Is<TokenEvent> M>
auto fields_of(M& m) {
  return std::tie(m.id, m.choice, m.index, m.token, m.text, m.n_released, m.logprob, m.finish, m.error, m.is_lean);
}
template <Is<TokenEvents> M>
auto fields_of(M& m) { return std::tie(m.events); }
template <Is<PromptProgress> M>
auto fields_of(M& m) { return std::tie(m.id, m.n_done, m.n_total, m.n_cached, m.weight_borders); }
template <Is<Heartbeat> M>
auto fields_of(M& m) {
  return std::tie(m.engine_turns, m.steps, m.prompt_tokens, m.generated_tokens, m.preemptions, m.swaps, m.n_running,
                  m.n_waiting, m.pages_used, m.pages_free, m.pages_shared, m.pages_swapped, m.batch_limit, m.prefill_seconds,
                  m.decode_seconds, m.sampling_seconds, m.last_batch, m.computed_tokens, m.pages_readopted,
                  m.pages_imported, m.bytes_imported, m.import_seconds, m.pages_lent);
}

// Number of fields of an aggregate: how many values of any type it can be initialized from.
struct AnyValue {
  template <typename T>
  operator T() const { __builtin_unreachable(); }  // NOLINT: implicit by design, never called
};
template <typename T, typename... Values>
constexpr size_t count_fields() {
  if constexpr (requires { T{Values{}..., AnyValue{}}; }) {
    return count_fields<T, Values..., AnyValue>();
  } else {
    return sizeof...(Values);
  }
}
template <typename T>
constexpr void check_all_fields_listed() {
  static_assert(std::tuple_size_v<decltype(fields_of(std::declval<T&>()))> == count_fields<T>(),
                "fields_of() does not list every field");
}

template <typename T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

// Largest valid value of each enumeration.
constexpr auto last_of(Role) { return Role::kDecode; }
constexpr auto last_of(Priority) { return Priority::kLow; }
constexpr auto last_of(FinishReason) { return FinishReason::kFailed; }
constexpr auto last_of(Prepare::Kind) { return Prepare::Kind::kIds; }

class Writer {
 public:
  template <Number T>
  void put(const T& v) { bytes(&v, sizeof v); }
  void put(const bool& v) { out_.push_back(v ? 1 : 0); }
  template <typename T>
    requires std::is_enum_v<T>
  void put(const T& v) { put(static_cast<std::underlying_type_t<T>>(v)); }
  void put(const std::string& v) {
    put(static_cast<uint32_t>(v.size()));
    bytes(v.data(), v.size());
  }
  template <typename A, typename B>
  void put(const std::pair<A, B>& v) { put(v.first), put(v.second); }
  template <typename T>
  void put(const std::optional<T>& v) {
    put(v.has_value());
    if (v) put(*v);
  }
  template <typename T>
  void put(const std::vector<T>& v) {
    put(static_cast<uint32_t>(v.size()));
    if constexpr (Number<T>) {
      bytes(v.data(), v.size() * sizeof(T));
    } else {
      for (const T& element : v) put(element);
    }
  }
  template <typename T>
    requires std::is_aggregate_v<T>
  void put(const T& v) {
    check_all_fields_listed<T>();
    std::apply([this](const auto&... field) { (void)this, (put(field), ...); }, fields_of(v));
  }
  std::string take() { return std::move(out_); }

 private:
  void bytes(const void* data, size_t size) {
    if (size > 0) out_.append(static_cast<const char*>(data), size);
  }
  std::string out_;
};

// Reads the fields back. The first thing out of order sets ok_ to false; from then on nothing is read.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> in) : in_(in) {}
  bool ok() const { return ok_; }
  bool at_end() const { return in_.empty(); }

  template <Number T>
  void get(T& v) { bytes(&v, sizeof v); }
  void get(bool& v) {
    uint8_t b = 0;
    get(b);
    if (b > 1) ok_ = false;
    v = b == 1;
  }
  template <typename T>
    requires std::is_enum_v<T>
  void get(T& v) {
    std::underlying_type_t<T> number = 0;
    get(number);
    if (number > static_cast<std::underlying_type_t<T>>(last_of(T{}))) ok_ = false;
    if (ok_) v = static_cast<T>(number);
  }
  void get(std::string& v) {
    uint32_t size = count(1);
    if (!ok_) return;
    v.assign(reinterpret_cast<const char*>(in_.data()), size);
    in_ = in_.subspan(size);
  }
  template <typename A, typename B>
  void get(std::pair<A, B>& v) { get(v.first), get(v.second); }
  template <typename T>
  void get(std::optional<T>& v) {
    bool present = false;
    get(present);
    if (ok_ && present) get(v.emplace());
  }
  template <typename T>
  void get(std::vector<T>& v) {
    // Every element takes at least one byte, a number its size: a count beyond that is a lie.
    uint32_t n = count(Number<T> ? sizeof(T) : 1);
    if (!ok_) return;
    if constexpr (Number<T>) {
      v.resize(n);
      bytes(v.data(), n * sizeof(T));
    } else {
      for (uint32_t i = 0; i < n && ok_; ++i) get(v.emplace_back());  // grows only with bytes read
    }
  }
  template <typename T>
    requires std::is_aggregate_v<T>
  void get(T& v) {
    std::apply([this](auto&... field) { ((ok_ ? get(field) : void()), ...); }, fields_of(v));
  }

 private:
  void bytes(void* data, size_t size) {
    if (!ok_ || in_.size() < size) {
      ok_ = false;
      return;
    }
    if (size > 0) std::memcpy(data, in_.data(), size);
    in_ = in_.subspan(size);
  }
  uint32_t count(size_t element_bytes) {
    uint32_t n = 0;
    get(n);
    if (n > in_.size() / element_bytes) ok_ = false;
    return ok_ ? n : 0;
  }
  std::span<const uint8_t> in_;
  bool ok_ = true;
};

template <typename Variant>
std::string encode_variant(const Variant& message) {
  Writer writer;
  writer.put(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& m) { writer.put(m); }, message);
  return writer.take();
}

// Makes alternative `index` of the variant and reads into it.
template <typename Variant, size_t I = 0>
bool read_alternative(size_t index, Reader& reader, Variant* out) {
  if constexpr (I == std::variant_size_v<Variant>) {
    return false;
  } else {
    if (index != I) return read_alternative<Variant, I + 1>(index, reader, out);
    reader.get(out->template emplace<I>());
    return true;
  }
}

template <typename Variant>
Result<Variant> decode_variant(std::span<const uint8_t> bytes, const char* direction) {
  Reader reader(bytes);
  uint8_t index = 0;
  reader.get(index);
  std::string what = std::string("message ") + direction + ", " + std::to_string(bytes.size()) + " bytes";
  if (!reader.ok()) return data_loss(what + ": empty");
  Variant message;
  if (!read_alternative(index, reader, &message)) {
    return data_loss(what + ": kind " + std::to_string(index) + " is unknown, allowed 0 to " +
                     std::to_string(std::variant_size_v<Variant> - 1));
  }
  what += ", kind " + std::to_string(index);
  if (!reader.ok()) return data_loss(what + ": a field is cut short or out of range");
  if (!reader.at_end()) return data_loss(what + ": bytes left over after the last field");
  return message;
}

}  // namespace

std::string encode(const ToWorker& message) { return encode_variant(message); }
std::string encode(const FromWorker& message) { return encode_variant(message); }
Result<ToWorker> decode_to_worker(std::span<const uint8_t> bytes) {
  return decode_variant<ToWorker>(bytes, "to worker");
}
Result<FromWorker> decode_from_worker(std::span<const uint8_t> bytes) {
  return decode_variant<FromWorker>(bytes, "from worker");
}

}  // namespace tandem::ipc
