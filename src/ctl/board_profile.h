// Which of the shipped profiles (firmware_config/profiles) suits this machine: what `tandem doctor --profile` says.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::ctl {

struct BoardFacts {
  std::string board = {};      // the device tree's model, "" where there is none (x86)
  int64_t memory_bytes = 0;    // 0: not known
  bool has_nvidia_card = false;
  int64_t gpu_memory_bytes = 0;  // of device 0, as its driver says; 0: none usable
  std::string gpu_trouble = {};  // why a card that is there is not usable
};
// From sysfs, the device tree and /proc below `root` ("" = the real ones). The card's memory is asked by a tandem-worker-cuda, if one is
// found.
BoardFacts read_board(const std::string& root);
// The line a worker prints for --probe-device: bytes of the card in all; 0 if it says none.
int64_t probed_memory_bytes(const std::string& line);

struct ProfileProposal {
  std::string name;  // file name without .toml
  std::string why;
};
ProfileProposal propose_profile(const BoardFacts& facts);

}  // namespace tandem::ctl
