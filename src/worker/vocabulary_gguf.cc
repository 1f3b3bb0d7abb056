#include "worker/vocabulary_gguf.h"

#include <fmt/format.h>

#include "tokenizer/pretokenizer.h"

namespace tandem {

namespace {

constexpr const char* kPrefix = "tokenizer.ggml.";

// Absent: leaves *out alone.
Status read_bool(const GgufModel& model, const std::string& key, bool* out) {
  if (!model.find(key)) return {};
  CHECK_ASSIGN(*out, model.get_bool(key));
  return {};
}

Status read_string(const GgufModel& model, const std::string& key, std::string* out) {
  if (!model.find(key)) return {};
  CHECK_ASSIGN(*out, model.get_string(key));
  return {};
}

// A token id; -1, which some converters write for "none", is as good as absent.
Status read_id(const GgufModel& model, const std::string& key, size_t n_tokens, int32_t* out) {
  if (!model.find(key)) return {};
  CHECK_ASSIGN(const int64_t id, model.get_int(key));
  constexpr int64_t kUnsignedNone = 0xFFFFFFFF;
  if (id == -1 || id == kUnsignedNone) return *out = -1, Status();
  if (id < 0 || id >= static_cast<int64_t>(n_tokens)) {
    return invalid_argument(fmt::format("{}: {}: {}; allowed 0 to {} (tokens in the vocabulary)",
                                        model.name(), key, id, n_tokens - 1));
  }
  *out = static_cast<int32_t>(id);
  return {};
}

Status read_strings(const GgufModel& model, const std::string& key, std::vector<std::string>* out) {
  CHECK_ASSIGN(const GgufArray* array, model.get_array(key));
  if (array->element_type != GgufValueType::kString) {
    return invalid_argument(fmt::format(
        "{}: {}: an array of another type; allowed an array of strings", model.name(), key));
  }
  out->assign(array->strings.begin(), array->strings.end());
  return {};
}

bool is_integer(GgufValueType type) {
  return type != GgufValueType::kF32 && type != GgufValueType::kF64 &&
         type != GgufValueType::kString && type != GgufValueType::kArray &&
         type != GgufValueType::kBool;
}

Status read_scores(const GgufModel& model, std::vector<float>* out) {
  const std::string key = fmt::format("{}scores", kPrefix);
  if (!model.find(key)) return {};
  CHECK_ASSIGN(const GgufArray* array, model.get_array(key));
  if (array->element_type != GgufValueType::kF32 && array->element_type != GgufValueType::kF64) {
    return invalid_argument(fmt::format(
        "{}: {}: an array of another type; allowed an array of float32", model.name(), key));
  }
  for (uint64_t i = 0; i < array->count; ++i) out->push_back(static_cast<float>(array->number(i)));
  return {};
}

Status read_types(const GgufModel& model, std::vector<int32_t>* out) {
  const std::string key = fmt::format("{}token_type", kPrefix);
  if (!model.find(key)) return {};
  CHECK_ASSIGN(const GgufArray* array, model.get_array(key));
  if (!is_integer(array->element_type)) {
    return invalid_argument(fmt::format(
        "{}: {}: an array of another type; allowed an array of integers", model.name(), key));
  }
  for (uint64_t i = 0; i < array->count; ++i) {
    const int64_t type = array->integer(i);
    if (type < 0 || type > kTokenByte) {
      return invalid_argument(
          fmt::format("{}: {}[{}]: {}; allowed 0 to {}", model.name(), key, i, type, +kTokenByte));
    }
    out->push_back(static_cast<int32_t>(type));
  }
  return {};
}

Status read_ids(const GgufModel& model, Vocabulary* v) {
  const size_t n = v->tokens.size();
  const auto key = [](const char* name) { return fmt::format("{}{}", kPrefix, name); };
  if (v->model == "llama") {  // the ids of SentencePiece's own defaults
    v->unknown = n > 0 ? 0 : -1;
    v->bos = n > 1 ? 1 : -1;
    v->eos = n > 2 ? 2 : -1;
  }
  CHECK_OK(read_id(model, key("bos_token_id"), n, &v->bos));
  CHECK_OK(read_id(model, key("eos_token_id"), n, &v->eos));
  CHECK_OK(read_id(model, key("eot_token_id"), n, &v->eot));
  CHECK_OK(read_id(model, key("unknown_token_id"), n, &v->unknown));
  CHECK_OK(read_id(model, key("padding_token_id"), n, &v->padding));
  int32_t eom = -1;
  CHECK_OK(read_id(model, key("eom_token_id"), n, &eom));
  if (eom >= 0) v->extra_end_tokens.push_back(eom);
  return {};
}

// Phi-3's SentencePiece vocabulary marks its turn tokens rstrip in tokenizer.json; GGUF has no key
// for that.
void fill_strip_right(const GgufModel& model, Vocabulary* v) {
  const auto architecture = model.get_string("general.architecture");
  if (v->model != "llama" || !architecture.ok() || *architecture != "phi3") return;
  for (size_t i = 0; i < v->types.size(); ++i) {
    const bool keeps =
        v->tokens[i] == "<s>" || v->tokens[i] == "<unk>" || v->tokens[i] == "<|endoftext|>";
    if (!keeps && v->types[i] == kTokenControl)
      v->strip_right_tokens.push_back(static_cast<int32_t>(i));
  }
}

}  // namespace

Result<Vocabulary> read_vocabulary(const GgufModel& model) {
  const auto key = [](const char* name) { return fmt::format("{}{}", kPrefix, name); };
  Vocabulary v;
  CHECK_ASSIGN(v.model, model.get_string(key("model")));
  CHECK_OK(read_string(model, key("pre"), &v.pre));
  CHECK_OK(read_strings(model, key("tokens"), &v.tokens));
  CHECK_OK(read_scores(model, &v.scores));
  CHECK_OK(read_types(model, &v.types));
  if (v.model == "gpt2") CHECK_OK(read_strings(model, key("merges"), &v.merges));
  CHECK_OK(read_ids(model, &v));
  v.add_space_prefix = v.model == "llama";
  v.add_bos = v.model == "llama" || PreTokenizer::adds_bos(v.pre);
  CHECK_OK(read_bool(model, key("add_bos_token"), &v.add_bos));
  CHECK_OK(read_bool(model, key("add_eos_token"), &v.add_eos));
  CHECK_OK(read_bool(model, key("add_space_prefix"), &v.add_space_prefix));
  CHECK_OK(read_string(model, "tokenizer.chat_template", &v.chat_template));
  fill_strip_right(model, &v);
  return v;
}

}  // namespace tandem
