// tandem inspect: what a GGUF file says about itself. Works for families that are not served, too.
#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "gguf/gguf_parser.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"
#include "worker/tool_args.h"
#include "worker/tool_model.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownBytes = 70;   // of a string
constexpr uint64_t kShownItems = 4;  // of an array

Json number_item(const GgufArray& array, uint64_t i) {
  const bool is_real =
      array.element_type == GgufValueType::kF32 || array.element_type == GgufValueType::kF64;
  return is_real ? Json(array.number(i)) : Json(array.integer(i));
}

std::string shorten(std::string_view text) {
  if (text.size() <= kShownBytes) return std::string(text);
  size_t end = kShownBytes;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return fmt::format("{}... ({} bytes)", text.substr(0, end), text.size());
}

Json array_value(const GgufArray& array) {
  Json first = Json::array();
  for (uint64_t i = 0; i < std::min(array.count, kShownItems); ++i) {
    if (array.element_type == GgufValueType::kString) {
      first.push_back(shorten(array.strings[i]));
    } else if (array.data) {
      first.push_back(number_item(array, i));
    }
  }
  return {{"count", array.count}, {"type", gguf_type_name(array.element_type)}, {"first", first}};
}

Json value_of(const GgufValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, GgufArray>) {
          return array_value(v);
        } else if constexpr (std::is_same_v<T, std::string_view>) {
          return shorten(v);
        } else {
          return v;
        }
      },
      value.value);
}

Json tensors_by_type(const GgufModel& file, Json* all) {
  struct Sum {
    int64_t n_tensors = 0, n_values = 0;
    uint64_t n_bytes = 0;
  };
  std::map<std::string, Sum> sums;
  for (const GgufTensor& t : file.tensors()) {
    const QuantTraits* traits = quant_traits(static_cast<uint32_t>(t.type));
    const std::string type =
        traits ? traits->name : fmt::format("type {}", static_cast<uint32_t>(t.type));
    const int64_t n_values = t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3];
    Sum& sum = sums[type];
    sum.n_tensors += 1;
    sum.n_values += n_values;
    sum.n_bytes += t.n_bytes;
    Json shape = Json::array();
    for (int d = 0; d < t.n_dims; ++d) shape.push_back(t.dims[d]);
    all->push_back({{"name", t.name}, {"type", type}, {"shape", shape}, {"bytes", t.n_bytes}});
  }
  Json out;
  for (const auto& [type, sum] : sums) {
    out[type] = {{"tensors", sum.n_tensors}, {"values", sum.n_values}, {"bytes", sum.n_bytes}};
  }
  return out;
}

// {"served": true, …} or {"served": false, "reason": …}.
Json describe_model(const GgufModel& file) {
  const auto config = read_model_config(file);
  if (!config.ok()) return {{"served", false}, {"reason", config.status().message()}};
  if (const auto weights = load_weights(file, *config); !weights.ok()) {
    return {{"served", false}, {"reason", weights.status().message()}};
  }
  return {{"served", true},
          {"parameters", config->n_parameters},
          {"context_tokens", config->context_tokens},
          {"layers", config->n_layers},
          {"hidden_dim", config->hidden_dim},
          {"vocab_size", config->vocab_size}};
}

Json describe_vocabulary(const GgufModel& file) {
  auto vocabulary = read_vocabulary(file);
  if (!vocabulary.ok()) return {{"served", false}, {"reason", vocabulary.status().message()}};
  Json out = {{"model", vocabulary->model},
              {"pre", vocabulary->pre},
              {"tokens", vocabulary->tokens.size()},
              {"merges", vocabulary->merges.size()},
              {"bos", vocabulary->bos},
              {"eos", vocabulary->eos},
              {"add_bos", vocabulary->add_bos},
              {"chat_template", !vocabulary->chat_template.empty()}};
  const auto tokenizer = Tokenizer::create(std::move(vocabulary).value());
  out["served"] = tokenizer.ok();
  if (!tokenizer.ok()) out["reason"] = tokenizer.status().message();
  if (tokenizer.ok()) out["end_tokens"] = (*tokenizer)->end_tokens();
  return out;
}

Json describe(const GgufModel& file) {
  Json keys = Json::object(), tensors = Json::array();
  for (const auto& [key, value] : file.metadata()) {
    keys[key] = {{"type", gguf_type_name(value.type)}, {"value", value_of(value)}};
  }
  const auto architecture = file.get_string("general.architecture");
  Json out = {{"file", file.name()},
              {"version", file.version()},
              {"architecture", architecture.ok() ? *architecture : ""},
              {"model", describe_model(file)},
              {"vocabulary", describe_vocabulary(file)}};
  out["tensors_by_type"] = tensors_by_type(file, &tensors);
  out["keys"] = std::move(keys);
  out["tensors"] = std::move(tensors);
  return out;
}

std::string dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

void print_pairs(const char* title, const Json& object) {
  std::printf("\n%s\n", title);
  for (const auto& [key, value] : object.items()) {
    std::printf("  %-40s %s\n", key.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : dump(value).c_str());
  }
}

void print(const Json& d) {
  std::printf("%s: GGUF version %s, architecture %s\n", d["file"].get<std::string>().c_str(),
              dump(d["version"]).c_str(), d["architecture"].get<std::string>().c_str());
  print_pairs("model", d["model"]);
  print_pairs("vocabulary", d["vocabulary"]);
  std::printf("\ntensors (%zu)\n", d["tensors"].size());
  for (const auto& [type, sum] : d["tensors_by_type"].items()) {
    std::printf("  %-10s %6s tensors  %14s values  %10.1f MiB\n", type.c_str(),
                dump(sum["tensors"]).c_str(), dump(sum["values"]).c_str(),
                sum["bytes"].get<double>() / (1 << 20));
  }
  std::printf("\nkeys (%zu)\n", d["keys"].size());
  for (const auto& [key, entry] : d["keys"].items()) {
    std::string value = dump(entry["value"]);
    std::printf("  %-44s %-8s %s\n", key.c_str(), entry["type"].get<std::string>().c_str(),
                value.c_str());
  }
}

}  // namespace

Result<int> tool_inspect(const ToolContext& context) {
  CHECK_ASSIGN(const auto file, open_tool_model(context.args));
  const Json description = describe(*file);
  if (context.args.has("--json")) {
    std::puts(dump(description, 1).c_str());
  } else {
    print(description);
  }
  return 0;
}

}  // namespace tandem
