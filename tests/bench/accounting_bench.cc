// What metrics and request log cost the supervisor a token, beside the time a token takes.
//   accounting_bench DATABASE DECODE_TOKENS_PER_S [TOKENS_A_REQUEST]
// Each token is counted as the dispatcher counts it (histogram of gaps, history, charge), each request as it ends (its row in a real
// SQLite file, its metrics), one scrape per 15 s of decoding is added. Log lines go to stderr: redirect it to a file.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "base/log.h"
#include "metrics/metrics.h"
#include "requestlog/request_log.h"
#include "supervisor/accounting.h"
#include "supervisor/history.h"

using namespace tandem;

namespace {

// All threads of this process: the log's writer counts too.
double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

ipc::RequestRecord record(int i, int n_tokens) {
  ipc::RequestRecord r;
  r.id = "req_" + std::to_string(i);
  r.client = "bench", r.model = "model", r.endpoint = "/v1/chat/completions", r.priority = "normal";
  r.status = r.finish_reason = "length";
  r.received_us = utc_us();
  r.prompt_tokens = 100, r.completion_tokens = n_tokens;
  return r;
}

}  // namespace

int main(int argc, char** argv) {
  const double tokens_per_s = argc > 2 ? std::atof(argv[2]) : 0;
  const int n_tokens = argc > 3 ? std::atoi(argv[3]) : 64;
  if (argc < 3 || tokens_per_s <= 0 || n_tokens <= 0) {
    return std::fprintf(stderr, "usage: accounting_bench DATABASE DECODE_TOKENS_PER_S [TOKENS_A_REQUEST]\n"), 2;
  }
  constexpr int kRequests = 4000;
  log_init("bench", LogLevel::kInfo);
  Metrics metrics;
  RequestLogOptions options;
  options.path = argv[1];
  auto log = RequestLog::open(options);
  Recent recent;
  Accounting accounting(&metrics, log.get(), &recent);
  History history;

  const double start = cpu_seconds();
  for (int i = 0; i < kRequests; ++i) {
    for (int t = 0; t < n_tokens; ++t) {
      history.note_token();
      if (t == 0) continue;
      const double gap_s = 0.001 + 0.0001 * (t % 37);
      metrics.observe(Metric::kInterTokenLatency, gap_s);
      history.note_gap(gap_s);
    }
    history.note_first_token(0.1);
    metrics.observe(Metric::kTimeToFirstToken, 0.1);
    accounting.account_ended(record(i, n_tokens));
    if (i % 256 == 255) log->flush();  // the queue is bounded; a server's rows come over a longer time
  }
  log->flush();
  const double counted = cpu_seconds() - start;
  const double scrape_start = cpu_seconds();
  constexpr int kScrapes = 20;
  size_t n_bytes = 0;
  for (int i = 0; i < kScrapes; ++i) n_bytes += metrics.text().size();
  const double scrape_s = (cpu_seconds() - scrape_start) / kScrapes;

  const double n = static_cast<double>(kRequests) * n_tokens;
  const RequestLogCounters counters = log->counters();
  if (counters.rows_written != kRequests || metrics.value(Metric::kInterTokenLatency) != n - kRequests || n_bytes == 0) {
    return std::fprintf(stderr, "accounting_bench: %llu rows written and %.0f gaps counted, expected %d and %.0f\n",
                        static_cast<unsigned long long>(counters.rows_written), metrics.value(Metric::kInterTokenLatency), kRequests,
                        n - kRequests),
           1;
  }
  const double token_s = counted / n + scrape_s / 15 / tokens_per_s;
  std::printf("%d requests of %d tokens: %.0f ns a token, a scrape %.2f ms (every 15 s); together %.0f ns a token = %.3f %% of the %.0f us "
              "that a token takes at %.0f tokens/s\n",
              kRequests, n_tokens, counted / n * 1e9, scrape_s * 1e3, token_s * 1e9, 100 * token_s * tokens_per_s, 1e6 / tokens_per_s,
              tokens_per_s);
  log_flush();
  return 0;
}
