// The last 15 minutes as the status page plots them: time to first token, inter-token latency and tokens per
// second, one point each 5 s. Bounded, in memory only. Confined to the supervisor's loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace tandem {

struct HistoryPoint {
  int64_t end_us = 0;          // monotonic, end of its 5 s
  double ttft_s = -1;          // median of its first tokens; -1: there was none
  double inter_token_s = -1;   // median of its gaps; -1: there was none
  double tokens_per_s = 0;
};

class History {
 public:
  static constexpr int64_t kPointUs = 5'000'000;
  static constexpr size_t kPoints = 180;  // 15 minutes

  void note_first_token(double ttft_s);
  void note_gap(double gap_s);
  void note_token() { ++n_tokens_; }
  // Closes the points that are due. A clock that jumped ahead (suspend) leaves a gap, not thousands of points.
  void turn(int64_t now_us);
  const std::deque<HistoryPoint>& points() const { return points_; }  // oldest first

 private:
  // Bounds what one point keeps: beyond it every further value replaces an earlier one in turn.
  static constexpr size_t kMaxSamples = 4096;
  struct Samples {
    std::vector<double> values;
    size_t n = 0;
    void add(double value);
    double take_median();
  };
  Samples ttft_, gaps_;
  int64_t n_tokens_ = 0, begin_us_ = 0;
  std::deque<HistoryPoint> points_;
};

}  // namespace tandem
