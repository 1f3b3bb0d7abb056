// Doctor's checks against planted faults, and the status text.
#include "ctl/doctor_checks.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file_hash.h"
#include "ctl/board_profile.h"
#include "base/unique_fd.h"
#include "ctl/status_text.h"
#include "tests/temp_folder.h"

using namespace tandem;
using namespace tandem::ctl;

namespace {

struct Folder : testing::TempFolder {
  std::string put(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const std::string file = TempFolder::put(name, text);
    REQUIRE(chmod(file.c_str(), mode) == 0);
    return file;
  }
};

std::string verdict(const DoctorLine& line) {
  const bool needs_remedy = std::string(line.verdict) != "pass";
  INFO(line.what << ": " << line.found);
  CHECK(line.remedy.empty() != needs_remedy);
  return line.verdict;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("doctor: clock") {
  CHECK(verdict(check_clock(1'790'000'000'000'000, true)) == "pass");
  CHECK(verdict(check_clock(1'790'000'000'000'000, false)) == "warn");
  CHECK(verdict(check_clock(0, true)) == "fail");
  CHECK(verdict(check_clock(1'700'000'000'000'000, true)) == "fail");
}

TEST_CASE("doctor: the profile proposed is one of those shipped, by board and card") {
  const auto name = [](const BoardFacts& facts) {
    const ProfileProposal p = propose_profile(facts);
    INFO(p.name << ": " << p.why);
    CHECK(!p.why.empty());
    CHECK(std::filesystem::exists(TANDEM_SOURCE_DIR "/firmware_config/profiles/" + p.name + ".toml"));
    return p.name;
  };
  constexpr int64_t kMiB = 1 << 20;
  CHECK(name({}) == "cpu-only");
  CHECK(name({.memory_bytes = 8192 * kMiB, .has_nvidia_card = true, .gpu_trouble = "driver 470 is too old"}) == "cpu-only");
  CHECK(has(propose_profile({.has_nvidia_card = true, .gpu_trouble = "driver 470"}).why, "driver 470"));
  // As drivers of such cards say it.
  for (const auto& [mib, want] : {std::pair{2048, "cpu-only"}, {4096, "x86-gpu-4gb"}, {3904, "x86-gpu-4gb"}, {5926, "x86-gpu-6gb"},
                                  {6144, "x86-gpu-6gb"}, {7982, "x86-gpu-8gb"}, {8188, "x86-gpu-8gb"}, {24564, "x86-gpu-8gb"}}) {
    INFO(mib);
    CHECK(name({.has_nvidia_card = true, .gpu_memory_bytes = mib * kMiB}) == want);
  }
  CHECK(name({.board = "Raspberry Pi 5 Model B Rev 1.0"}) == "raspberry-pi-5");
  CHECK(has(propose_profile({.board = "Raspberry Pi 4 Model B"}).why, "nearest"));
  CHECK(name({.board = "NVIDIA Jetson Orin Nano Developer Kit", .gpu_memory_bytes = 7620 * kMiB}) == "jetson-orin");
  CHECK(name({.board = "NVIDIA Jetson Orin Nano Developer Kit", .gpu_trouble = "no driver"}) == "cpu-only");

  Folder box;
  box.put("proc/device-tree/model", std::string("Raspberry Pi 5 Model B Rev 1.1\0", 31));
  box.put("proc/meminfo", "MemTotal:        8060000 kB\nMemFree:          100000 kB\n");
  const BoardFacts read = read_board(box.path);
  CHECK(read.board == "Raspberry Pi 5 Model B Rev 1.1");
  CHECK(read.memory_bytes == int64_t{8060000} * 1024);
  CHECK(!read.has_nvidia_card);
  CHECK(probed_memory_bytes("NVIDIA T400 4GB, sm_75, driver 580.65, 3651 MiB of 3904 free\n") == 3904 * kMiB);
  CHECK(probed_memory_bytes("no CUDA device\n") == 0);
  CHECK(probed_memory_bytes("x MiB of y free") == 0);
}

TEST_CASE("doctor: device") {
  Folder none;
  CHECK(verdict(check_device(none.path)) == "pass");
  Folder card;
  card.put("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  card.put("sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
  CHECK(verdict(check_device(card.path)) == "warn");
  CHECK(has(check_device(card.path).found, "without a driver"));
  card.put("sys/module/nvidia/version", "535.161.07\n");
  CHECK(verdict(check_device(card.path)) == "warn");
  CHECK(has(check_device(card.path).remedy, "580"));
  card.put("sys/module/nvidia/version", "580.65.06\n");
  CHECK(verdict(check_device(card.path)) == "pass");
}

TEST_CASE("doctor: port") {
  Config config;
  config.server_listen = "127.0.0.1:0";
  CHECK(verdict(check_port(config)) == "pass");
  config.server_listen = "nonsense";
  CHECK(verdict(check_port(config)) == "fail");
  config.server_listen = "203.0.113.1:8080";  // not an address of this machine
  CHECK(verdict(check_port(config)) == "fail");
  UniqueFd other(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in a{};
  a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof a;
  REQUIRE(bind(other.get(), reinterpret_cast<sockaddr*>(&a), size) == 0);
  getsockname(other.get(), reinterpret_cast<sockaddr*>(&a), &size);
  config.server_listen = "127.0.0.1:" + std::to_string(ntohs(a.sin_port));
  CHECK(verdict(check_port(config)) == "fail");
  CHECK(has(check_port(config).found, "another program"));
}

TEST_CASE("doctor: key files") {
  Folder folder;
  Config config;
  config.auth_user_keys_file = folder.put("keys", "x");
  config.auth_admin_key_file = folder.path + "/none";
  auto lines = check_key_files(config);
  REQUIRE(lines.size() == 2);
  CHECK(verdict(lines[0]) == "pass");
  CHECK(verdict(lines[1]) == "fail");
  folder.put("keys", "x", 0644);
  CHECK(verdict(check_key_files(config)[0]) == "warn");
}

TEST_CASE("doctor: folders") {
  Folder folder;
  CHECK(verdict(check_folder("state folder", folder.path + "/deep/er")) != "fail");
  CHECK(verdict(check_folder("state folder", folder.put("file", "x"))) == "fail");
}

TEST_CASE("doctor: the model's hash, and the one beside it") {
  Folder folder;
  const std::string model = folder.put("m.gguf", "weights"), memory = folder.path + "/hashes";
  CHECK(verdict(check_model_hash(model, memory)) == "pass");
  CHECK(has(check_model_hash(model, memory).found, sha256_of_text("weights")));
  folder.put("m.gguf.sha256", sha256_of_text("weights") + "  m.gguf\n");
  CHECK(verdict(check_model_hash(model, memory)) == "pass");
  folder.put("m.gguf.sha256", std::string(64, '0') + "  m.gguf\n");
  CHECK(verdict(check_model_hash(model, memory)) == "fail");
  CHECK(verdict(check_model_hash(folder.path + "/none", memory)) == "fail");
}

TEST_CASE("doctor: the file that weights.lean names") {
  Folder folder;
  folder.put("lean.gguf", "weights");
  CHECK(verdict(check_lean_file(folder.path + "/lean.gguf")) == "pass");
  CHECK(has(check_lean_file(folder.path + "/lean.gguf").found, "7 bytes"));
  CHECK(verdict(check_lean_file(folder.path + "/none.gguf")) == "warn");
  CHECK(has(check_lean_file(folder.path + "/none.gguf").found, "/none.gguf: No such file"));
  CHECK(has(check_lean_file(folder.path).found, "Is a directory"));
}

TEST_CASE("status text: what is there is shown, the rest is a dash, foreign bytes reach no terminal") {
  auto text = status_text(R"({"readiness":{"state":"dead","cause":"x\u001b[31m y","remedy":"wait"},
    "queue":{"running":2,"waiting":{"high":0,"normal":1,"low":5}},"kv":{"pages_used":1,"pages_free":3},
    "history":{"ttft_seconds":[0.5,0.25,null]},"workers":[{"role":"both","state":"ready","pid":7},{"role":"decode","device":"gpu","isa":"sm_89 avx2","device_layers":20}],
    "model":{"layers":32},
    "sensors":{"temperature_celsius":{"state":"broken","note":"zone0","value":null}},
    "faults":[{"at":"2026-11-29T12:00:00Z","what":"worker ended","action":"restarted","count":2}]})");
  REQUIRE(text.ok());
  for (const char* part : {"dead: x?[31m y", "what helps: wait", "running 2", "low 5", "1 of 4 pages used (25.0 %)",
                           "first token 250 ms", "both ready   pid 7", "broken sensor: zone0", "(x2); done: restarted",
                           "clock no sensor", "between tokens -", "gpu sm_89 avx2, 20 of 32 layers on the device\n"}) {
    INFO(part << "\n" << *text);
    CHECK(has(*text, part));
  }
  for (const char* bad : {"", "[]", "{}", "<html>"}) CHECK(!status_text(bad).ok());
}
