// Runs a Generation to its end and writes the reply, plain or streamed, through the shape of its endpoint.
#pragma once

#include <memory>

#include "api/generation.h"
#include "api/reply_shapes.h"

namespace tandem::api {

// What has come of one choice since the last chunk, or in all for a plain reply.
struct ChoicePart {
  uint32_t choice = 0;
  std::string text;
  std::vector<ipc::LogprobEntry> logprobs;
  size_t n_without_value = 0;  // leading entries without a value: an echoed prompt's first token
  bool is_end = false;
  ipc::FinishReason finish = ipc::FinishReason::kNone;
  std::string reason;
  StreamTiming timing;
  std::vector<std::string> degraded;
};

// The two endpoints' JSON. One object a request.
class ReplyShape {
 public:
  virtual ~ReplyShape() = default;
  virtual const char* id_prefix() const = 0;
  virtual const char* object(bool is_stream) const = 0;
  // One choice object of a plain reply.
  virtual void write_choice(JsonWriter* out, const ChoicePart& part, bool has_logprobs) = 0;
  // One choice object of a chunk. `has_logprobs`: asked for and not degraded away.
  virtual void write_delta(JsonWriter* out, const ChoicePart& part, bool has_logprobs) = 0;
  // Chat: the first chunk of each choice names the role.
  virtual bool has_role_chunk() const { return false; }
  virtual void write_role(JsonWriter*, uint32_t) {}
};

// Errors of Generation::start become plain replies; from then on the service owns the log row.
HttpReply run_inference(const ApiContext& api, HttpRequest& http, const std::string& endpoint,
                        InferenceRequest request, std::unique_ptr<ReplyShape> shape);

}  // namespace tandem::api
