#include "api/unsupported.h"

namespace tandem::api {
namespace {

bool never(const JsonValue&) { return false; }
bool always(const JsonValue&) { return true; }
bool is_false(const JsonValue& v) { return v.as_bool() != nullptr && !*v.as_bool(); }
bool is_true(const JsonValue& v) { return v.as_bool() != nullptr && *v.as_bool(); }
bool is_empty(const JsonValue& v) {
  return (v.as_array() != nullptr && v.as_array()->empty()) || (v.as_object() != nullptr && v.as_object()->empty()) ||
         (v.as_string() != nullptr && v.as_string()->empty());
}
bool is_zero(const JsonValue& v) { return v.as_integer() != nullptr && *v.as_integer() == 0; }
bool is_one(const JsonValue& v) {
  return (v.as_integer() != nullptr && *v.as_integer() == 1) || (v.as_double() != nullptr && *v.as_double() == 1.0);
}
bool is_none_or_auto(const JsonValue& v) {
  return v.as_string() != nullptr && (*v.as_string() == "none" || *v.as_string() == "auto");
}
bool is_default_tier(const JsonValue& v) {
  return v.as_string() != nullptr && (*v.as_string() == "default" || *v.as_string() == "auto");
}
bool is_text_format(const JsonValue& v) {
  const JsonValue* type = v.find("type");
  return type != nullptr && type->as_string() != nullptr && *type->as_string() == "text";
}
bool is_text_only(const JsonValue& v) {
  const JsonArray* list = v.as_array();
  return list != nullptr && list->size() == 1 && (*list)[0].as_string() != nullptr && *(*list)[0].as_string() == "text";
}

struct Row {
  const char* name;
  bool (*has_no_effect)(const JsonValue&);
};
constexpr Row kRows[] = {
    {"tools", is_empty},
    {"tool_choice", is_none_or_auto},       // without tools both mean the same
    {"parallel_tool_calls", always},        // says something about tools only
    {"functions", is_empty},
    {"function_call", is_none_or_auto},
    {"response_format", is_text_format},
    {"modalities", is_text_only},
    {"audio", never},
    {"prediction", never},
    {"web_search_options", never},
    {"reasoning_effort", never},
    {"verbosity", never},
    {"service_tier", is_default_tier},
    {"store", is_false},
    {"suffix", is_empty},
    {"logit_processors", is_empty},
    {"logits_processors", is_empty},
    {"guided_json", never},
    {"guided_regex", never},
    {"guided_choice", never},
    {"guided_grammar", never},
    {"structured_outputs", never},
    {"grammar", is_empty},
    {"json_schema", never},
    {"chat_template", never},
    {"chat_template_kwargs", is_empty},
    {"documents", is_empty},
    {"add_generation_prompt", is_true},
    {"continue_final_message", is_false},
    {"prompt_logprobs", never},
    {"min_tokens", is_zero},
    {"stop_token_ids", is_empty},
    {"use_beam_search", is_false},
    {"length_penalty", is_one},
    {"typical_p", is_one},
    {"mirostat", is_zero},
};

}  // namespace

void refuse_unsupported(JsonFields* fields, int n_choices) {
  auto refuse = [&](const char* name) {
    fields->fail(api_error("unsupported_parameter", "`" + fields->path(name) + "` is not supported by this server",
                           fields->path(name)));
  };
  for (const Row& row : kRows) {
    const JsonValue* value = fields->take(row.name);
    if (value != nullptr && !row.has_no_effect(*value)) refuse(row.name);
  }
  const JsonValue* best_of = fields->take("best_of");
  if (best_of != nullptr && (best_of->as_integer() == nullptr || *best_of->as_integer() != n_choices))
    refuse("best_of");
}

}  // namespace tandem::api
