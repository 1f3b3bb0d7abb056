// Writes seeds of fuzz_ipc: an empty message of each kind, a few filled ones, and all of a side as one stream. usage: make_ipc_seeds FOLDER
#include <fstream>

#include "ipc/codec.h"

using namespace tandem::ipc;

namespace {

int written = 0;
std::string streams[2];  // from the worker, to the worker

template <typename Side, typename Message>
void save(const std::string& folder, char side, Message message) {
  const std::string name = (side != 0 ? "/to_worker_" : "/from_worker_") + std::to_string(written++);
  const std::string frame = encode(Side(std::move(message)));
  std::ofstream(folder + name, std::ios::binary) << side << frame;
  std::string& stream = streams[static_cast<size_t>(side)];
  for (int byte = 0; byte < 4; ++byte) stream += static_cast<char>(frame.size() >> 8 * byte);
  stream += frame;
}

template <typename Side, size_t... I>
void save_empty(const std::string& folder, char side, std::index_sequence<I...>) {
  (save<Side>(folder, side, std::variant_alternative_t<I, Side>()), ...);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  save_empty<ToWorker>(folder, 1, std::make_index_sequence<std::variant_size_v<ToWorker>>());
  save_empty<FromWorker>(folder, 0, std::make_index_sequence<std::variant_size_v<FromWorker>>());
  Submit submit;
  submit.id = 7;
  submit.prompt = {1, 2, 3};
  submit.choices = {{0, {4, 5}, 6}, {1, {}, 0}};
  submit.sampling.logit_bias = {{3, -1.5f}};
  submit.stop = {"stop", "\n\n"};
  save<ToWorker>(folder, 1, submit);
  Prepare prepare;
  prepare.kind = Prepare::Kind::kChat;
  prepare.messages = {{"user", "hello", ""}, {"assistant", "hi", "n"}};
  save<ToWorker>(folder, 1, prepare);
  TokenEvent event;
  event.token = 5;
  event.text = "text";
  event.logprob = LogprobEntry{{5, -0.5f, "t"}, {{6, -1.0f, "u"}}};
  save<FromWorker>(folder, 0, TokenEvents{{event, event}});
  PrepareReply reply;
  reply.ok = true;
  reply.ids = {1, 2};
  reply.prompt_text = "text";
  save<FromWorker>(folder, 0, reply);
  for (const char side : {char{0}, char{1}}) {
    const char in_small_pieces = static_cast<char>(2 | 20 << 2 | side);
    std::ofstream(folder + (side != 0 ? "/to_worker_stream" : "/from_worker_stream"), std::ios::binary)
        << in_small_pieces << streams[static_cast<size_t>(side)];
  }
  return 0;
}
