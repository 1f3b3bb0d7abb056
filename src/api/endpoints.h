// One function an endpoint; the table of paths is routes.cc. Called on connection threads, many at once.
#pragma once

#include "api/generation.h"
#include "api/http_types.h"

namespace tandem::api {

HttpReply handle_chat(const ApiContext& api, HttpRequest& http);
HttpReply handle_completions(const ApiContext& api, HttpRequest& http);
HttpReply handle_models(const ApiContext& api, HttpRequest& http);
HttpReply handle_model(const ApiContext& api, HttpRequest& http);  // /v1/models/{name}
HttpReply handle_tokenize(const ApiContext& api, HttpRequest& http);
HttpReply handle_detokenize(const ApiContext& api, HttpRequest& http);
HttpReply handle_apply_template(const ApiContext& api, HttpRequest& http);
HttpReply handle_health(const ApiContext& api, HttpRequest& http);
HttpReply handle_ready(const ApiContext& api, HttpRequest& http);
HttpReply handle_metrics(const ApiContext& api, HttpRequest& http);
HttpReply handle_status_json(const ApiContext& api, HttpRequest& http);
HttpReply handle_status(const ApiContext& api, HttpRequest& http);
HttpReply handle_status_events(const ApiContext& api, HttpRequest& http);
HttpReply handle_admin(const ApiContext& api, HttpRequest& http);  // the POST paths below /admin
HttpReply handle_config(const ApiContext& api, HttpRequest& http);
HttpReply handle_bundle(const ApiContext& api, HttpRequest& http);
HttpReply handle_requests(const ApiContext& api, HttpRequest& http);
HttpReply handle_openapi(const ApiContext& api, HttpRequest& http);

}  // namespace tandem::api
