#include "api/validation.h"

#include "api/json_fields.h"
#include "api/keys.h"
#include "api/unsupported.h"

namespace tandem::api {
namespace {

std::optional<int32_t> token_id(const JsonValue& value) {
  const int64_t* i = value.as_integer();
  if (i == nullptr || *i < 0 || *i > INT32_MAX) return std::nullopt;
  return static_cast<int32_t>(*i);
}

// A list of ids, or nothing with the error set.
std::vector<int32_t> read_ids(const JsonArray& list, const std::string& name, JsonFields* fields) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const JsonValue& value : list) {
    auto id = token_id(value);
    if (!id) {
      fields->fail(name, "must hold token ids: integers >= 0 and <= 2147483647");
      return {};
    }
    ids.push_back(*id);
  }
  if (ids.empty()) fields->fail(name, "must hold at least one token id");
  return ids;
}

void read_sampling(JsonFields* f, InferenceRequest* r) {
  ipc::Sampling& s = r->sampling;
  auto real = [&](const char* name, NumberRange range, float* out) {
    if (auto v = f->number(name, range)) *out = static_cast<float>(*v);
  };
  real("temperature", {0, 2}, &s.temperature);
  real("top_p", {0, 1, true}, &s.top_p);
  real("min_p", {0, 1}, &s.min_p);
  real("presence_penalty", {-2, 2}, &s.presence_penalty);
  real("frequency_penalty", {-2, 2}, &s.frequency_penalty);
  real("repetition_penalty", {0, 10, true}, &s.repetition_penalty);
  if (s.top_p <= 0) s.top_p = 1e-30f;  // > 0 as a double, 0 as a float: only the likeliest token stays
  if (s.repetition_penalty <= 0) f->fail("repetition_penalty", "is too small to be told from 0");
  if (auto v = f->integer("top_k", -1, INT32_MAX)) s.top_k = *v < 0 ? 0 : static_cast<int32_t>(*v);
  if (auto v = f->integer("seed", INT64_MIN, INT64_MAX)) {
    s.seed = static_cast<uint64_t>(*v);
    r->has_seed = true;
  }
  if (auto v = f->boolean("ignore_eos")) s.ignore_eos = *v;
}

void read_logit_bias(JsonFields* f, ipc::Sampling* s) {
  const JsonValue* value = f->take("logit_bias");
  if (value == nullptr) return;
  const JsonObject* object = value->as_object();
  if (object == nullptr) return f->fail("logit_bias", std::string("must be an object of token id to bias, got ") + value->kind());
  if (object->size() > kMaxLogitBias)
    return f->fail("logit_bias", "must have at most " + std::to_string(kMaxLogitBias) + " entries, got " +
                                     std::to_string(object->size()));
  JsonFields entries(*object, f->path("logit_bias."));
  for (const auto& [key, bias] : *object) {
    bool is_id = !key.empty() && key.size() <= 10 && key.find_first_not_of("0123456789") == std::string::npos;
    int64_t id = is_id ? std::stoll(key) : -1;
    if (id < 0 || id > INT32_MAX)
      return f->fail("logit_bias", "must have token ids (decimal, >= 0) as keys, got \"" + safe_word(key) + "\"");
    auto v = entries.number(key, {-100, 100});
    if (entries.error()) return f->fail(*entries.error());
    if (!v) return f->fail("logit_bias", "must have numbers from -100 to 100 as values, got null");
    for (const auto& other : s->logit_bias)
      if (other.first == id) return f->fail("logit_bias", "names token " + std::to_string(id) + " twice");
    s->logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(*v));
  }
}

void read_stop(JsonFields* f, const RequestBounds& bounds, InferenceRequest* r) {
  const JsonValue* value = f->take("stop");
  if (value == nullptr) return;
  if (const std::string* one = value->as_string()) {
    r->stop.push_back(*one);
  } else if (const JsonArray* list = value->as_array()) {
    for (const JsonValue& item : *list) {
      if (item.as_string() == nullptr) return f->fail("stop", std::string("must be a string or a list of strings, got ") + item.kind() + " in it");
      r->stop.push_back(*item.as_string());
    }
  } else {
    return f->fail("stop", std::string("must be a string or a list of strings, got ") + value->kind());
  }
  if (r->stop.size() > static_cast<size_t>(bounds.max_stop_strings))
    return f->fail("stop", "must have at most " + std::to_string(bounds.max_stop_strings) + " strings, got " +
                               std::to_string(r->stop.size()));
  for (const std::string& text : r->stop) {
    if (text.empty()) return f->fail("stop", "must not hold an empty string");
    if (text.size() > static_cast<size_t>(bounds.max_stop_bytes))
      return f->fail("stop", "must have strings of at most " + std::to_string(bounds.max_stop_bytes) +
                                 " bytes, got " + std::to_string(text.size()));
  }
}

void read_max_tokens(JsonFields* f, int64_t min, InferenceRequest* r) {
  auto old_name = f->integer("max_tokens", min, INT32_MAX);
  auto new_name = f->integer("max_completion_tokens", min, INT32_MAX);
  if (old_name && new_name && *old_name != *new_name)
    return f->fail("max_completion_tokens", "and `max_tokens` differ (" + std::to_string(*new_name) + " and " +
                                                std::to_string(*old_name) + "); give one of them");
  if (new_name) old_name = new_name;
  if (old_name) r->max_tokens = static_cast<uint32_t>(*old_name);
}

void read_stream(JsonFields* f, InferenceRequest* r) {
  if (auto v = f->boolean("stream")) r->is_stream = *v;
  const JsonValue* value = f->take("stream_options");
  if (value == nullptr) return;
  const JsonObject* object = value->as_object();
  if (object == nullptr) return f->fail("stream_options", std::string("must be an object, got ") + value->kind());
  if (!r->is_stream) return f->fail("stream_options", "is only allowed with `stream`: true");
  JsonFields options(*object, f->path("stream_options."));
  if (auto v = options.boolean("include_usage")) r->include_usage = *v;
  auto padding = options.boolean("include_obfuscation");
  if (padding && *padding)
    options.fail(api_error("unsupported_parameter", "`stream_options.include_obfuscation` is not supported by this server",
                           "stream_options.include_obfuscation"));
  if (options.error()) return f->fail(*options.error());
  for (const std::string& name : options.not_taken()) r->ignored.push_back("stream_options." + name);
}

void read_priority(JsonFields* f, InferenceRequest* r) {
  auto name = f->string("priority");
  if (!name) return;
  r->priority = parse_priority(*name);
  if (!r->priority) f->fail("priority", "must be \"high\", \"normal\" or \"low\"");
}

// What chat and completions have in common, after their own fields.
ApiResult<InferenceRequest> read_common(JsonFields* f, const RequestBounds& bounds, int64_t min_max_tokens,
                                        InferenceRequest r) {
  r.model = f->string("model");
  read_sampling(f, &r);
  read_logit_bias(f, &r.sampling);
  read_stop(f, bounds, &r);
  read_max_tokens(f, min_max_tokens, &r);
  if (auto v = f->integer("n", 1, bounds.max_choices)) r.n_choices = static_cast<int>(*v);
  read_stream(f, &r);
  read_priority(f, &r);
  f->string("user");  // checked and dropped: keys tell clients apart here
  if (auto v = f->number("timeout_s", {0, static_cast<double>(kMaxTimeoutSeconds), true}))
    r.timeout_ms = std::max<int64_t>(1, static_cast<int64_t>(*v * 1000));
  refuse_unsupported(f, r.n_choices);
  for (const std::string& name : f->not_taken()) r.ignored.push_back(name);
  if (f->error()) return *f->error();
  return r;
}

void read_parts(const JsonArray& parts, JsonFields* f, std::string* content) {
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string name = "content[" + std::to_string(i) + "]";
    const JsonValue* type = parts[i].find("type");
    if (type == nullptr || type->as_string() == nullptr)
      return f->fail(name, "must be an object with a `type`");
    if (*type->as_string() != "text")
      return f->fail(api_error("unsupported_content",
                               "`" + f->path(name) + "` is of kind \"" + safe_word(*type->as_string()) +
                                   "\"; this server takes text only",
                               f->path(name)));
    const JsonValue* text = parts[i].find("text");
    if (text == nullptr || text->as_string() == nullptr) return f->fail(name + ".text", "must be a string");
    *content += *text->as_string();
  }
}

void read_message(JsonFields* f, ipc::Message* message) {
  std::string role = f->string("role").value_or("");
  if (role == "developer") role = "system";  // OpenAI's newer name of the same role
  if (role == "tool" || role == "function")
    return f->fail(api_error("unsupported_parameter", "`" + f->path("role") + "` is \"" + role +
                                                          "\"; tools are not supported by this server",
                             f->path("role")));
  if (role != "system" && role != "user" && role != "assistant")
    return f->fail("role", "must be \"system\", \"developer\", \"user\" or \"assistant\"");
  message->role = role;
  message->name = f->string("name").value_or("");
  for (const char* name : {"tool_calls", "function_call", "audio"}) {
    const JsonValue* value = f->take(name);
    if (value != nullptr && !(value->as_array() != nullptr && value->as_array()->empty()))
      return f->fail(api_error("unsupported_parameter", "`" + f->path(name) + "` is not supported by this server", f->path(name)));
  }
  const JsonValue* content = f->take("content");
  if (content == nullptr) {
    if (role != "assistant") f->fail("content", "must be a string or a list of text parts; null is allowed for \"assistant\" only");
  } else if (content->as_string() != nullptr) {
    message->content = *content->as_string();
  } else if (content->as_array() != nullptr) {
    read_parts(*content->as_array(), f, &message->content);
  } else {
    f->fail("content", std::string("must be a string or a list of text parts, got ") + content->kind());
  }
}

std::vector<ipc::Message> read_messages(JsonFields* f) {
  std::vector<ipc::Message> messages;
  const JsonValue* value = f->take("messages");
  const JsonArray* list = value == nullptr ? nullptr : value->as_array();
  if (list == nullptr || list->empty()) {
    f->fail("messages", std::string("must be a list of at least one message") +
                            (value == nullptr || list != nullptr ? "" : std::string(", got ") + value->kind()));
    return messages;
  }
  for (size_t i = 0; i < list->size() && !f->error(); ++i) {
    std::string name = "messages[" + std::to_string(i) + "]";
    const JsonObject* object = (*list)[i].as_object();
    if (object == nullptr) {
      f->fail(name, std::string("must be an object, got ") + (*list)[i].kind());
      break;
    }
    JsonFields fields(*object, name + ".");
    read_message(&fields, &messages.emplace_back());
    if (fields.error()) f->fail(*fields.error());
  }
  return messages;
}

void read_prompts(JsonFields* f, std::vector<PromptInput>* prompts) {
  constexpr const char* kRule = "must be a string, a list of strings, a list of token ids or a list of such lists";
  const JsonValue* value = f->take("prompt");
  if (value == nullptr) return f->fail("prompt", std::string(kRule) + "; it is missing");
  if (value->as_string() != nullptr) return void(prompts->push_back({false, *value->as_string(), {}}));
  const JsonArray* list = value->as_array();
  if (list == nullptr) return f->fail("prompt", std::string(kRule) + ", got " + value->kind());
  if (list->empty()) return f->fail("prompt", "must not be an empty list");
  if (list->front().as_integer() != nullptr)
    return void(prompts->push_back({true, "", read_ids(*list, "prompt", f)}));
  if (list->size() > kMaxPrompts)
    return f->fail("prompt", "must have at most " + std::to_string(kMaxPrompts) + " prompts, got " + std::to_string(list->size()));
  bool are_texts = list->front().as_string() != nullptr;
  for (size_t i = 0; i < list->size() && !f->error(); ++i) {
    const JsonValue& item = (*list)[i];
    std::string name = "prompt[" + std::to_string(i) + "]";
    if (are_texts && item.as_string() != nullptr)
      prompts->push_back({false, *item.as_string(), {}});
    else if (!are_texts && item.as_array() != nullptr)
      prompts->push_back({true, "", read_ids(*item.as_array(), name, f)});
    else
      f->fail("prompt", std::string(kRule) + ", all of one kind; item " + std::to_string(i) + " is " + item.kind());
  }
}

// The body as an object, or why it is none.
ApiResult<JsonValue> parse_object(std::string_view body) {
  auto parsed = parse_json(body);
  if (parsed.ok() && parsed.value().as_object() == nullptr)
    return api_error("invalid_json", std::string("the request body must be one JSON object, got ") + parsed.value().kind());
  return parsed;
}

}  // namespace

ApiResult<InferenceRequest> parse_chat_request(std::string_view body, const RequestBounds& bounds) {
  auto parsed = parse_object(body);
  if (!parsed.ok()) return parsed.error();
  JsonFields fields(*parsed.value().as_object(), "");
  InferenceRequest r;
  r.messages = read_messages(&fields);
  bool wants = fields.boolean("logprobs").value_or(false);
  auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !wants) fields.fail("top_logprobs", "is only allowed with `logprobs`: true");
  if (wants) r.sampling.n_top_logprobs = static_cast<int32_t>(top.value_or(0));
  if (fields.boolean("echo").value_or(false))
    fields.fail(api_error("unsupported_parameter", "`echo` is for /v1/completions only", "echo"));
  return read_common(&fields, bounds, 1, std::move(r));
}

ApiResult<InferenceRequest> parse_completion_request(std::string_view body, const RequestBounds& bounds) {
  auto parsed = parse_object(body);
  if (!parsed.ok()) return parsed.error();
  JsonFields fields(*parsed.value().as_object(), "");
  InferenceRequest r;
  read_prompts(&fields, &r.prompts);
  if (auto v = fields.integer("logprobs", 0, kMaxTopLogprobs)) r.sampling.n_top_logprobs = static_cast<int32_t>(*v);
  if (fields.take("top_logprobs") != nullptr)
    fields.fail(api_error("unsupported_parameter",
                          "`top_logprobs` is for chat; completions take `logprobs`: 0 to 20", "top_logprobs"));
  r.echo = fields.boolean("echo").value_or(false);
  return read_common(&fields, bounds, 0, std::move(r));
}

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body) {
  auto parsed = parse_object(body);
  if (!parsed.ok()) return parsed.error();
  JsonFields fields(*parsed.value().as_object(), "");
  TokenizeRequest r;
  auto content = fields.string("content");
  if (!content) fields.fail("content", "must be a string; it is missing");
  r.content = content.value_or("");
  r.add_special = fields.boolean("add_special").value_or(false);
  r.parse_special = fields.boolean("parse_special").value_or(false);
  if (fields.error()) return *fields.error();
  return r;
}

ApiResult<std::vector<int32_t>> parse_detokenize_request(std::string_view body) {
  auto parsed = parse_object(body);
  if (!parsed.ok()) return parsed.error();
  JsonFields fields(*parsed.value().as_object(), "");
  const JsonValue* tokens = fields.take("tokens");
  std::vector<int32_t> ids;
  if (tokens == nullptr || tokens->as_array() == nullptr)
    fields.fail("tokens", "must be a list of token ids");
  else if (!tokens->as_array()->empty())
    ids = read_ids(*tokens->as_array(), "tokens", &fields);
  if (fields.error()) return *fields.error();
  return ids;
}

ApiResult<TemplateRequest> parse_template_request(std::string_view body) {
  auto parsed = parse_object(body);
  if (!parsed.ok()) return parsed.error();
  JsonFields fields(*parsed.value().as_object(), "");
  TemplateRequest r;
  r.messages = read_messages(&fields);
  r.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  if (fields.error()) return *fields.error();
  return r;
}

}  // namespace tandem::api
