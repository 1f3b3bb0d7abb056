// GET /v1/models and /v1/models/{name}.
#include "api/endpoints.h"
#include "api/json_writer.h"

namespace tandem::api {
namespace {

constexpr std::string_view kPrefix = "/v1/models/";

void write_model(const ApiContext& api, JsonWriter* out) {
  out->begin_object().key("id").string(api.service.model_name()).key("object").string("model");
  out->key("created").integer(api.service.model_created()).key("owned_by").string("tandem");
  out->key("meta");
  if (auto info = api.service.model()) {
    out->begin_object().key("architecture").string(info->architecture);
    out->key("quantization").string(info->quantization).key("n_parameters").integer(info->n_parameters);
    out->key("context_tokens").integer(info->context_tokens).key("vocab_size").integer(info->vocab_size);
    out->key("has_chat_template").boolean(info->has_chat_template).end_object();
  } else {
    out->null();  // no worker has been ready yet
  }
  out->end_object();
}

std::string percent_decoded(std::string_view text) {
  auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int high = text[i] == '%' && i + 2 < text.size() ? digit(text[i + 1]) : -1;
    int low = high >= 0 ? digit(text[i + 2]) : -1;
    if (low >= 0) {
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

HttpReply handle_models(const ApiContext& api, HttpRequest&) {
  JsonWriter out;
  out.begin_object().key("object").string("list").key("data").begin_array();
  write_model(api, &out);
  out.end_array().end_object();
  return json_reply(out.take());
}

HttpReply handle_model(const ApiContext& api, HttpRequest& http) {
  if (auto error = check_model(api, percent_decoded(http.path.substr(kPrefix.size())))) return error_reply(*error);
  JsonWriter out;
  write_model(api, &out);
  return json_reply(out.take());
}

}  // namespace tandem::api
