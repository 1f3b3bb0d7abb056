// Bytes from the other process. First byte: which side reads, and whether the rest is one frame or a stream of them.
// What decodes must encode to the same again; a channel must cut the stream at its lengths however it arrives.
#include <sys/socket.h>

#include <algorithm>
#include <span>

#include "fuzz_target.h"
#include "ipc/channel.h"
#include "ipc/codec.h"

namespace {

template <typename Message>
void check_round_trip(const tandem::Result<Message>& decoded,
                      tandem::Result<Message> (*decode)(std::span<const uint8_t>)) {
  if (!decoded.ok()) return;
  const std::string once = tandem::ipc::encode(*decoded);
  const auto again = decode({reinterpret_cast<const uint8_t*>(once.data()), once.size()});
  FUZZ_REQUIRE(again.ok());
  FUZZ_REQUIRE(tandem::ipc::encode(*again) == once);
}

void check_frame(bool to_worker, std::span<const uint8_t> frame) {
  if (to_worker) {
    check_round_trip(tandem::ipc::decode_to_worker(frame), tandem::ipc::decode_to_worker);
  } else {
    check_round_trip(tandem::ipc::decode_from_worker(frame), tandem::ipc::decode_from_worker);
  }
}

struct Cut {
  std::vector<std::string> frames;
  bool is_good = true;  // no length that ends the stream
};

Cut cut_at_lengths(std::span<const uint8_t> stream) {
  Cut cut;
  while (stream.size() >= 4) {
    const size_t size = stream[0] | stream[1] << 8 | stream[2] << 16 | static_cast<size_t>(stream[3]) << 24;
    cut.is_good = size >= 1 && size <= tandem::ipc::kMaxFrameBytes;
    if (!cut.is_good || stream.size() - 4 < size) break;
    cut.frames.emplace_back(stream.begin() + 4, stream.begin() + 4 + static_cast<ptrdiff_t>(size));
    stream = stream.subspan(4 + size);
  }
  return cut;
}

void check_stream(bool to_worker, size_t piece, std::span<const uint8_t> stream) {
  auto pair = tandem::ipc::channel_pair();
  FUZZ_REQUIRE(pair.ok());
  auto [writer, reader] = std::move(pair).value();
  tandem::ipc::Channel channel(std::move(reader));
  const Cut expected = cut_at_lengths(stream);
  std::vector<std::string> frames;
  tandem::Status status = tandem::ok_status();
  for (size_t at = 0; at < stream.size() && status.ok(); at += piece) {
    const size_t size = std::min(piece, stream.size() - at);
    FUZZ_REQUIRE(::send(writer.get(), stream.data() + at, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
    status = channel.receive(&frames);
  }
  FUZZ_REQUIRE(status.ok() == expected.is_good);
  FUZZ_REQUIRE(status.ok() || status.code() == tandem::StatusCode::kDataLoss);
  FUZZ_REQUIRE(frames == expected.frames);
  for (const std::string& frame : frames) {
    check_frame(to_worker, {reinterpret_cast<const uint8_t*>(frame.data()), frame.size()});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::planted_fault(data, size);
  if (size == 0) return 0;
  const bool to_worker = (data[0] & 1) != 0;
  const std::span<const uint8_t> rest(data + 1, size - 1);
  if ((data[0] & 2) == 0) {
    check_frame(to_worker, rest);
  } else {
    check_stream(to_worker, std::max<size_t>(1 + (data[0] >> 2), rest.size() / 4), rest);
  }
  return 0;
}
