#include "supervisor/prompt_placement.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

#include "base/file_hash.h"
#include "base/file_io.h"
#include "base/log.h"

namespace tandem {
namespace {

constexpr size_t kMostLines = 32;

struct Line {
  std::string stamp, key;  // digests
  PromptRange range;
};

// What does not read as a line is no line: the file is only worth a measurement.
std::vector<Line> read_lines(const std::string& path) {
  std::vector<Line> lines;
  std::ifstream in(path);
  for (std::string text; lines.size() < kMostLines && std::getline(in, text);) {
    char stamp[65] = "", key[65] = "";
    Line line;
    long long from = 0, to = 0;
    if (std::sscanf(text.c_str(), "%64[0-9a-f] %64[0-9a-f] %lld %lld", stamp, key, &from, &to) != 4) continue;
    line.stamp = stamp, line.key = key, line.range = {from, to};
    lines.push_back(std::move(line));
  }
  return lines;
}

// Of this model there is one line afterwards, or none. The newest first; replaced in one step. Where it cannot be written
// the next start measures again.
void replace_line(const std::string& path, const std::string& stamp, const Line* fresh) {
  std::vector<Line> lines = read_lines(path);
  std::erase_if(lines, [&](const Line& l) { return l.stamp == stamp; });
  if (fresh != nullptr) lines.insert(lines.begin(), *fresh);
  if (lines.size() > kMostLines) lines.resize(kMostLines);
  std::string text;
  for (const Line& l : lines)
    text += l.stamp + " " + l.key + " " + std::to_string(l.range.from) + " " + std::to_string(l.range.to) + "\n";
  if (Status status = replace_note(path, text); !status.ok())
    log_warn("where prompts are computed is not kept", {{"reason", status.message()}});
}

// All that the two lines depend on, beside the model.
std::string key_of(const ipc::ModelInfo& processor, const ipc::ModelInfo& device) {
  return sha256_of_text(processor.isa + "|" + device.isa + "|" + device.device_name + "|" + std::to_string(device.device_layers) + "|" +
                        std::to_string(device.context_tokens));
}

}  // namespace

PromptRange faster_on_device(const PromptCost& processor, const PromptCost& device, int64_t context) {
  const int64_t fixed = (device.fixed_us - processor.fixed_us) * 1000, token = device.token_ns - processor.token_ns;
  // fixed + token * n <= 0
  if (token == 0) return fixed <= 0 ? PromptRange{1, context} : PromptRange{};
  if (token > 0) return fixed > 0 ? PromptRange{} : PromptRange{1, std::min(context, -fixed / token)};
  return {std::max<int64_t>(1, fixed <= 0 ? 1 : (fixed - token - 1) / -token), context};
}

bool PromptPlacement::wants_measurement(const std::string& stamp) const {
  if (!is_on()) return false;
  const std::string digest = sha256_of_text(stamp);
  const std::vector<Line> lines = read_lines(path_);
  return std::none_of(lines.begin(), lines.end(), [&](const Line& l) { return l.stamp == digest; });
}

void PromptPlacement::turn(std::span<WorkerLink* const> links, const std::function<std::string()>& stamp) {
  if (!is_on() || range_) return;
  const WorkerLink *prefill = nullptr, *decode = nullptr;
  for (const WorkerLink* link : links) {
    if (!is_ready(*link) || !link->model()) continue;
    if (link->role() == ipc::Role::kPrefill) prefill = link;
    if (link->role() == ipc::Role::kDecode && link->model()->device == "gpu") decode = link;
  }
  if (prefill == nullptr || decode == nullptr) return;
  const ipc::ModelInfo &processor = *prefill->model(), &device = *decode->model();
  const std::string stamp_digest = sha256_of_text(stamp()), key = key_of(processor, device);
  const char* source = "kept";
  for (const Line& line : read_lines(path_)) {
    if (line.stamp == stamp_digest && line.key == key) range_ = line.range;
  }
  if (!range_) {
    const bool is_measured = processor.prompt_token_ns > 0 && device.prompt_token_ns > 0;
    const PromptRange range = is_measured ? faster_on_device({processor.prompt_fixed_us, processor.prompt_token_ns},
                                            {device.prompt_fixed_us, device.prompt_token_ns}, device.context_tokens)
                         : PromptRange{};
    source = is_measured ? "measured" : "not measured: what was kept is of other places; the next start measures";
    const Line line{stamp_digest, key, range};
    replace_line(path_, stamp_digest, is_measured ? &line : nullptr);
    range_ = range;
  }
  log_info("prompts on the device", {{"from_tokens", range_->from}, {"to_tokens", range_->to}, {"source", source}});
}

}  // namespace tandem
