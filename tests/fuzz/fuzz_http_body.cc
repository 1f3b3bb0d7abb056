// Heads and bodies of HTTP requests. First byte: which parser; rest: the bytes.
#include "api/http_head.h"
#include "api/validation.h"
#include "fuzz_target.h"

namespace {

using namespace tandem::api;

void check_inference(ApiResult<InferenceRequest> request, const RequestBounds& bounds) {
  if (!request.ok()) return;
  const InferenceRequest& r = request.value();
  FUZZ_REQUIRE(r.n_choices >= 1 && r.n_choices <= bounds.max_choices);
  FUZZ_REQUIRE(r.stop.size() <= static_cast<size_t>(bounds.max_stop_strings));
  FUZZ_REQUIRE(r.prompts.size() <= kMaxPrompts);
  FUZZ_REQUIRE(r.sampling.logit_bias.size() <= kMaxLogitBias);
  FUZZ_REQUIRE(r.sampling.n_top_logprobs >= -1 && r.sampling.n_top_logprobs <= kMaxTopLogprobs);
  FUZZ_REQUIRE(r.sampling.temperature >= 0 && r.sampling.top_p > 0 && r.sampling.top_p <= 1);
}

void check_head(std::string_view bytes) {
  const size_t end = find_head_end(bytes);
  if (end == std::string_view::npos) return;
  FUZZ_REQUIRE(end <= bytes.size());
  auto parsed = parse_http_head(bytes.substr(0, end));
  if (!parsed.ok()) return;
  const HttpHead& head = parsed.value();
  FUZZ_REQUIRE(!head.method.empty() && !head.target.empty());
  FUZZ_REQUIRE(head.headers.size() <= kMaxHeaderCount);
  FUZZ_REQUIRE(!(head.is_chunked && head.content_length));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::planted_fault(data, size);
  if (size == 0) return 0;
  const std::string_view body = tandem::fuzz::view(data + 1, size - 1);
  const RequestBounds bounds;
  switch (data[0] % 6) {
    case 0: check_inference(parse_chat_request(body, bounds), bounds); break;
    case 1: check_inference(parse_completion_request(body, bounds), bounds); break;
    case 2: (void)parse_tokenize_request(body); break;
    case 3: (void)parse_detokenize_request(body); break;
    case 4: (void)parse_template_request(body); break;
    default: check_head(body); break;
  }
  return 0;
}
