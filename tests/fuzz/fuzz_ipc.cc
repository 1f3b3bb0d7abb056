// Frames from the other process. First byte: which side reads; what decodes must encode to the same again.
#include <span>

#include "fuzz_target.h"
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::planted_fault(data, size);
  if (size == 0) return 0;
  const std::span<const uint8_t> frame(data + 1, size - 1);
  if (data[0] & 1) {
    check_round_trip(tandem::ipc::decode_to_worker(frame), tandem::ipc::decode_to_worker);
  } else {
    check_round_trip(tandem::ipc::decode_from_worker(frame), tandem::ipc::decode_from_worker);
  }
  return 0;
}
