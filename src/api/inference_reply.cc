#include "api/inference_reply.h"

#include "api/sse.h"
#include "base/clock.h"

namespace tandem::api {
namespace {

constexpr int64_t kLongWaitMs = 1000;
constexpr size_t kMaxIgnoredNames = 20;

// State of one running reply; shared with the stream function, which outlives the handler.
struct Run {
  const ApiContext& api;
  std::unique_ptr<ReplyShape> shape;
  std::unique_ptr<Generation> generation;
  ReplyHead head;
  std::vector<std::vector<ipc::LogprobEntry>> prompt_logprobs;  // per prompt, for echo
  std::vector<bool> is_started;                                 // per choice: the echo is out

  const InferenceRequest& request() const { return generation->request(); }
  bool shows_logprobs(const ChoicePart& part) const {
    return request().wants_logprobs() && !is_degraded(part.degraded, "logprobs");
  }
  // The event as a part of its choice, the echoed prompt before the first.
  ChoicePart part(GenerationEvent* e) {
    ChoicePart p;
    p.choice = e->choice;
    if (request().echo && !is_started.at(e->choice)) {
      p.text = generation->prompt_text(e->prompt);
      p.logprobs = prompt_logprobs[e->prompt];
      p.n_without_value = p.logprobs.empty() ? 0 : 1;
    }
    is_started.at(e->choice) = true;
    StreamEvent& event = e->event;
    p.text += event.text;
    p.logprobs.insert(p.logprobs.end(), std::make_move_iterator(event.logprobs.begin()),
                      std::make_move_iterator(event.logprobs.end()));
    p.is_end = event.kind == StreamEvent::Kind::kChoiceEnd;
    p.finish = event.finish;
    p.reason = std::move(event.reason);
    if (p.is_end && p.finish == ipc::FinishReason::kDeadline && p.reason.empty()) p.reason = "deadline";
    p.timing = event.timing;
    p.degraded = std::move(event.degraded);
    return p;
  }
  void keep_prompt_logprobs(GenerationEvent* e) {
    auto& kept = prompt_logprobs[e->prompt];
    kept.insert(kept.end(), e->event.logprobs.begin(), e->event.logprobs.end());
  }
};

HttpReply failed_reply(const ApiError& error) {
  HttpReply reply = error_reply(error);
  reply.is_logged = true;
  reply.must_close = error.code == "client_gone";
  return reply;
}

void append(ChoicePart* whole, ChoicePart part) {
  if (whole->text.empty() && whole->logprobs.empty()) whole->n_without_value = part.n_without_value;
  whole->text += part.text;
  whole->logprobs.insert(whole->logprobs.end(), std::make_move_iterator(part.logprobs.begin()),
                         std::make_move_iterator(part.logprobs.end()));
  if (!part.is_end) return;
  whole->is_end = true;
  whole->finish = part.finish;
  whole->reason = part.reason;
  whole->degraded = part.degraded;
}

HttpReply plain_reply(Run* run) {
  std::vector<ChoicePart> choices(run->generation->n_choices());
  for (size_t i = 0; i < choices.size(); ++i) choices[i].choice = static_cast<uint32_t>(i);
  GenerationEvent e;
  do {
    e = run->generation->next(kLongWaitMs);
    if (e.event.kind == StreamEvent::Kind::kError) return failed_reply(*e.event.error);
    if (e.event.kind == StreamEvent::Kind::kPromptLogprobs) run->keep_prompt_logprobs(&e);
    if (e.event.kind == StreamEvent::Kind::kText || e.event.kind == StreamEvent::Kind::kChoiceEnd)
      append(&choices.at(e.choice), run->part(&e));
  } while (e.event.kind != StreamEvent::Kind::kEnd);

  JsonWriter out;
  write_head(&out, run->head);
  out.key("choices").begin_array();
  std::string reason;
  for (ChoicePart& choice : choices) {
    if (is_degraded(e.event.degraded, "logprobs")) choice.degraded = e.event.degraded;
    if (reason.empty()) reason = choice.reason;
    run->shape->write_choice(&out, choice, run->shows_logprobs(choice));
  }
  out.end_array();
  write_usage(&out, e.event);
  write_tandem(&out, e.event.timing, e.event.degraded, reason);
  out.end_object();
  HttpReply reply = json_reply(out.take());
  reply.is_logged = true;
  if (!e.event.degraded.empty()) reply.headers.emplace_back("X-Tandem-Degraded", join(e.event.degraded, ","));
  return reply;
}

// --- streamed ---

void close_chunk(JsonWriter* out, bool include_usage) {
  if (include_usage) out->key("usage").null();
  out->end_object();
}

bool send_roles(Run* run, SseWriter* sse) {
  if (!run->shape->has_role_chunk()) return true;
  for (uint32_t i = 0; i < run->generation->n_choices(); ++i) {
    JsonWriter out;
    write_head(&out, run->head);
    out.key("choices").begin_array();
    run->shape->write_role(&out, i);
    out.end_array();
    close_chunk(&out, run->request().include_usage);
    if (!sse->data(out.take())) return false;
  }
  return true;
}

bool send_part(Run* run, SseWriter* sse, const ChoicePart& part) {
  JsonWriter out;
  write_head(&out, run->head);
  out.key("choices").begin_array();
  run->shape->write_delta(&out, part, run->shows_logprobs(part));
  out.end_array();
  if (part.is_end) write_tandem(&out, part.timing, part.degraded, part.reason);
  close_chunk(&out, run->request().include_usage);
  return sse->data(out.take());
}

bool send_event(Run* run, SseWriter* sse, GenerationEvent* e) {
  if (e->event.kind == StreamEvent::Kind::kPromptLogprobs) {
    run->keep_prompt_logprobs(e);
    return true;
  }
  ChoicePart part = run->part(e);
  bool is_end = part.is_end;
  if (!part.text.empty() || !part.logprobs.empty()) {
    part.is_end = false;  // text and finish in chunks of their own
    if (!send_part(run, sse, part)) return false;
    part.text.clear();
    part.logprobs.clear();
  }
  part.is_end = is_end;
  return !is_end || send_part(run, sse, part);
}

bool send_end(Run* run, SseWriter* sse, const StreamEvent& totals) {
  if (run->request().include_usage) {
    JsonWriter out;
    write_head(&out, run->head);
    out.key("choices").begin_array().end_array();
    write_usage(&out, totals);
    out.end_object();
    if (!sse->data(out.take())) return false;
  }
  return sse->done();
}

// The body of a stream, from its first event on. Returns true only for a normal end.
bool stream_body(Run* run, GenerationEvent e, ReplySink* sink) {
  SseWriter sse(sink);
  const int64_t keepalive_us = run->api.config.server_sse_keepalive_ms * 1000;
  if (!send_roles(run, &sse)) return false;
  while (true) {
    if (e.event.kind == StreamEvent::Kind::kEnd) return send_end(run, &sse, e.event);
    if (e.event.kind == StreamEvent::Kind::kError) {
      sse.data(api_error_json(*e.event.error));
      return false;
    }
    if (e.event.kind != StreamEvent::Kind::kIdle && !send_event(run, &sse, &e)) return false;
    int64_t due_us = sse.last_write_us() + keepalive_us;
    if (monotonic_us() >= due_us && !sse.keep_alive()) return false;
    due_us = sse.last_write_us() + keepalive_us;
    e = run->generation->next(std::max<int64_t>(1, (due_us - monotonic_us() + 999) / 1000));
  }
}

// The status line waits for the first event, so that a refusal keeps its status; after a keep-alive's time of
// silence the head goes out all the same.
HttpReply stream_reply(std::shared_ptr<Run> run) {
  GenerationEvent first = run->generation->next(run->api.config.server_sse_keepalive_ms);
  if (first.event.kind == StreamEvent::Kind::kError) return failed_reply(*first.event.error);
  HttpReply reply;
  reply.is_logged = true;
  reply.content_type = "text/event-stream";
  reply.headers.emplace_back("Cache-Control", "no-cache");
  reply.stream = [run, first = std::move(first)](ReplySink& sink) { return stream_body(run.get(), first, &sink); };
  return reply;
}

}  // namespace

HttpReply run_inference(const ApiContext& api, HttpRequest& http, const std::string& endpoint,
                        InferenceRequest request, std::unique_ptr<ReplyShape> shape) {
  std::string ignored;
  for (size_t i = 0; i < request.ignored.size() && i < kMaxIgnoredNames; ++i)
    ignored += (i > 0 ? ", " : "") + request.ignored[i];
  if (request.ignored.size() > kMaxIgnoredNames) ignored += ", ...";
  auto generation = Generation::start(api, http, endpoint, std::move(request));
  if (!generation.ok()) {
    HttpReply reply = error_reply(generation.error());
    reply.must_close = generation.error().code == "client_gone";
    return reply;
  }
  auto run = std::make_shared<Run>(Run{api, std::move(shape), std::move(generation.value()), {}, {}, {}});
  bool is_stream = run->request().is_stream;
  run->head = {run->shape->id_prefix() + http.id.substr(http.id.find('_') + 1), run->shape->object(is_stream),
               utc_us() / 1'000'000, run->generation->model()};
  run->is_started.resize(run->generation->n_choices());
  run->prompt_logprobs.resize(run->generation->n_choices());
  HttpReply reply = is_stream ? stream_reply(run) : plain_reply(run.get());
  if (!ignored.empty()) reply.headers.emplace_back("X-Tandem-Ignored", ignored);
  return reply;
}

}  // namespace tandem::api
