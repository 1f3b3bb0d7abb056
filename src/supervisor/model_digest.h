// The SHA-256 of the model's file(s), parts one after another: taken once per (device, inode, size, mtime), in idle
// time on a thread of its own, and remembered in the cache folder. Confined to the loop thread.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace tandem {

class ModelDigest {
 public:
  ModelDigest() = default;
  ModelDigest(const ModelDigest&) = delete;
  ModelDigest& operator=(const ModelDigest&) = delete;
  ~ModelDigest() { stop(); }

  // Looks up `stamp` (model_stamp()) in `folder`, else begins to read `paths`. Nothing happens where that is under way
  // or done already. A folder that cannot be written or a file that cannot be read costs only the digest.
  void want(const std::string& folder, const std::string& stamp, const std::vector<std::string>& paths);
  // Hex digits; empty as long as it is not known.
  std::string get() const { return is_done_ ? hex_ : ""; }
  void stop();  // gives up what is under way

 private:
  std::string stamp_, hex_;  // hex_: written before is_done_
  std::atomic<bool> is_done_{false}, stop_{false};
  std::thread thread_;
};

}  // namespace tandem
