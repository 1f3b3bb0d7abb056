// simulate: the scheduler, page pool and queue under a trace, at any scale. See --help.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/clock.h"
#include "base/log.h"
#include "simulation.h"

namespace tandem {
namespace {

struct Arguments {
  SimOptions sim;
  SyntheticTrace synthetic;
  std::string trace, weights, batching = "continuous", plant = "none";
  std::vector<std::string> bench;
  int64_t kv_tokens = 65536, swap_tokens = 0;
  double target_ms = 50;
  bool fits_only = false, compares = false, is_json = false;
};

const std::map<std::string, Batching> kBatchings = {{"continuous", Batching::kContinuous},
                                                    {"dynamic", Batching::kDynamic},
                                                    {"static", Batching::kStatic},
                                                    {"static-padded", Batching::kStaticPadded}};
const std::map<std::string, Plant> kPlants = {
    {"none", Plant::kNone},          {"leak", Plant::kLeak},           {"starvation", Plant::kStarvation},
    {"double-end", Plant::kDoubleEnd}, {"two-owners", Plant::kTwoOwners}, {"queue-bound", Plant::kQueueBound}};

void declare(CLI::App* app, Arguments* a) {
  app->set_help_flag("--help", "Print this help");
  auto* s = &a->sim.scheduler;
  auto* t = &a->synthetic;
  app->add_option("--bench", a->bench, "Output of `tandem bench --json` to fit the step times to, FILE or FILE:CHUNK "
                                       "(its --chunk, 256 if not said); may be given several times");
  app->add_option("--weights", a->weights, "Step times as printed by --fit, instead of --bench");
  app->add_flag("--fit", a->fits_only, "Only print the weights that --bench gives");
  app->add_option("--overhead-us", a->sim.latency.overhead_us, "Time of a step beside the model's");
  app->add_option("--noise", a->sim.latency.noise, "Standard deviation of a step's time, as a share");
  app->add_option("--trace", a->trace, "Arrivals: lines of `arrival_ms prompt output [priority 0|1|2 [key]]`, or the "
                                       "JSON of /v1/requests; without it, a synthetic trace by the options below");
  app->add_option("--requests", t->n_requests, "How many requests")->check(CLI::Range(int64_t{1}, int64_t{100'000'000}));
  app->add_option("--rate", t->per_second, "Poisson arrivals a second; 0: all at once");
  app->add_option("--short-prompt", t->short_prompt)->check(CLI::PositiveNumber);
  app->add_option("--short-output", t->short_output)->check(CLI::PositiveNumber);
  app->add_option("--long-prompt", t->long_prompt)->check(CLI::PositiveNumber);
  app->add_option("--long-output", t->long_output)->check(CLI::PositiveNumber);
  app->add_option("--long-share", t->long_share, "Share of long requests")->check(CLI::Range(0.0, 1.0));
  app->add_option("--high-share", t->high_share)->check(CLI::Range(0.0, 1.0));
  app->add_option("--low-share", t->low_share)->check(CLI::Range(0.0, 1.0));
  app->add_option("--keys", t->n_keys, "Clients")->check(CLI::PositiveNumber);
  app->add_option("--shared-prefix", t->n_shared, "First prompt tokens that a client's requests have in common");
  app->add_option("--cancel-share", t->cancel_share)->check(CLI::Range(0.0, 1.0));
  app->add_option("--timeout-share", t->timeout_share)->check(CLI::Range(0.0, 1.0));
  app->add_option("--seed", t->seed);
  app->add_option("--lanes", s->max_batch_size, "max_batch_size")->check(CLI::PositiveNumber);
  app->add_option("--chunk", s->prefill_chunk_tokens, "prefill_chunk_tokens")->check(CLI::PositiveNumber);
  app->add_option("--target-ms", a->target_ms, "target_inter_token_latency_ms");
  app->add_option("--kv-tokens", a->kv_tokens, "Tokens the KV pool holds")->check(CLI::PositiveNumber);
  app->add_option("--swap-tokens", a->swap_tokens, "Tokens the swap pool holds")->check(CLI::NonNegativeNumber);
  app->add_flag("!--fixed-limit", s->adapts_batch_limit, "Do not adapt the batch limit to the pages in use");
  app->add_flag("!--no-prefix-cache", s->has_prefix_cache);
  app->add_option("--batching", a->batching)->check(CLI::IsMember(kBatchings));
  app->add_option("--max-queue", a->sim.limits.max_queue)->check(CLI::PositiveNumber);
  app->add_option("--plant", a->plant, "Plant a fault that must be reported")->check(CLI::IsMember(kPlants));
  app->add_flag("--compare", a->compares, "Run the trace with each way of batching");
  app->add_flag("--json", a->is_json);
  app->footer("Exit code: 0 if everything held, 1 if a fault was found, 2 for wrong use.");
}

struct Line {
  std::string batching;
  SimReport report;
  double wall_s = 0;
};

double ms(double us) { return us < 0 ? -1 : us / 1000; }

// Quantiles of requests that ended well; short ones: at most twice the shortest answer of the trace.
void print(const std::vector<SimRequest>& trace, const Line& line, bool is_json) {
  const SimReport& r = line.report;
  int least = INT32_MAX;
  for (const SimRequest& t : trace) least = std::min(least, t.n_output);
  auto done = [](const SimOutcome& o) { return o.end == SimOutcome::End::kDone; };
  auto latency = [&](size_t i, const SimOutcome& o) {
    return done(o) && trace[i].n_output <= 2 * least ? static_cast<double>(o.end_us) : -1.0;
  };
  auto ttft = [&](int priority) {
    return quantile(r, 0.5, [&](size_t i, const SimOutcome& o) {
      return trace[i].priority == priority ? static_cast<double>(o.first_token_us) : -1.0;
    });
  };
  double worst = quantile(r, 1.0, [&](size_t, const SimOutcome& o) { return static_cast<double>(o.worst_gap_us); });
  auto count = [&](SimOutcome::End e) {
    auto it = r.n_ends.find(e);
    return it == r.n_ends.end() ? int64_t{0} : it->second;
  };
  double p50 = ms(quantile(r, 0.5, latency)), p99 = ms(quantile(r, 0.99, latency));
  if (is_json) {
    std::printf("%s\n", fmt::format(
        "{{\"batching\":\"{}\",\"tokens_per_s\":{:.2f},\"seconds\":{:.3f},\"steps\":{},\"short_p50_ms\":{:.2f},"
        "\"short_p99_ms\":{:.2f},\"ttft_p50_ms\":{{\"high\":{:.2f},\"normal\":{:.2f},\"low\":{:.2f}}},"
        "\"worst_gap_ms\":{:.2f},\"done\":{},\"refused\":{},\"displaced\":{},\"deadline\":{},\"cancelled\":{},"
        "\"recomputed\":{},\"swapped\":{},\"recalled\":{},\"kv_wasted\":{:.4f},\"faults\":{},\"wall_s\":{:.2f}}}",
        line.batching, r.tokens_per_s(), r.seconds, r.n_steps, p50, p99, ms(ttft(0)), ms(ttft(1)), ms(ttft(2)),
        ms(worst), count(SimOutcome::End::kDone), count(SimOutcome::End::kRefused),
        count(SimOutcome::End::kDisplaced), count(SimOutcome::End::kDeadline), count(SimOutcome::End::kCancelled),
        r.preemptions, r.swaps, r.recalls, r.wasted_share, r.faults.size(), line.wall_s).c_str());
    return;
  }
  std::printf("%-14s %9.1f tokens/s in %10.1f s  short p50 %9.1f p99 %9.1f ms  TTFT p50 high %.0f normal %.0f low "
              "%.0f ms  worst gap %.0f ms\n",
              line.batching.c_str(), r.tokens_per_s(), r.seconds, p50, p99, ms(ttft(0)), ms(ttft(1)), ms(ttft(2)),
              ms(worst));
  std::printf("  done %lld refused %lld displaced %lld deadline %lld cancelled %lld; recomputed %llu swapped %llu "
              "recalled %llu; KV wasted %.1f %%; %lld steps, %.1f s of this machine\n",
              static_cast<long long>(count(SimOutcome::End::kDone)), static_cast<long long>(count(SimOutcome::End::kRefused)),
              static_cast<long long>(count(SimOutcome::End::kDisplaced)),
              static_cast<long long>(count(SimOutcome::End::kDeadline)),
              static_cast<long long>(count(SimOutcome::End::kCancelled)),
              static_cast<unsigned long long>(r.preemptions), static_cast<unsigned long long>(r.swaps),
              static_cast<unsigned long long>(r.recalls), 100 * r.wasted_share,
              static_cast<long long>(r.n_steps), line.wall_s);
}

int fail(const Status& status) {
  std::fprintf(stderr, "simulate: %s\n", status.message().c_str());
  return 2;
}

Result<LatencyModel> latency_of(const Arguments& a) {
  LatencyModel model = example_latency();
  if (!a.weights.empty()) {
    CHECK_ASSIGN(model, parse_weights(a.weights));
  } else if (!a.bench.empty()) {
    CHECK_ASSIGN(model, fit_latency(a.bench));
  }
  model.overhead_us = a.sim.latency.overhead_us;
  model.noise = a.sim.latency.noise;
  return model;
}

int run(Arguments* a) {
  auto latency = latency_of(*a);
  if (!latency.ok()) return fail(latency.status());
  if (a->fits_only) {
    std::printf("%s\n", print_weights(latency->cost).c_str());
    return 0;
  }
  std::vector<SimRequest> trace;
  if (a->trace.empty()) {
    trace = make_trace(a->synthetic);
  } else {
    auto read = read_trace(a->trace);
    if (!read.ok()) return fail(read.status());
    trace = std::move(*read);
  }
  SchedulerOptions& s = a->sim.scheduler;
  s.windows = {0};
  s.n_pages = {static_cast<int>(std::max<int64_t>(1, a->kv_tokens / s.page_size))};
  s.n_swap_pages = {static_cast<int>(a->swap_tokens / s.page_size)};
  s.context_tokens = 1 << 20;
  s.target_gap_us = static_cast<int64_t>(a->target_ms * 1000);
  a->sim.latency = *latency;
  a->sim.plant = kPlants.at(a->plant);
  std::vector<std::string> ways = {a->batching};
  if (a->compares) ways = {"static-padded", "static", "dynamic", "continuous"};
  bool has_fault = false;
  double first = 0;
  for (const std::string& way : ways) {
    s.batching = kBatchings.at(way);
    int64_t start = monotonic_us();
    Line line{way, simulate(trace, a->sim), 0};
    line.wall_s = static_cast<double>(monotonic_us() - start) / 1e6;
    print(trace, line, a->is_json);
    if (first == 0) first = line.report.tokens_per_s();
    if (a->compares && !a->is_json) std::printf("  %.2f times the first\n", line.report.tokens_per_s() / first);
    for (const std::string& what : line.report.faults) std::printf("FAULT %s\n", what.c_str());
    has_fault = has_fault || !line.report.faults.empty();
  }
  return has_fault ? 1 : 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::Arguments arguments;
  CLI::App app{"Runs the real scheduler, page pool and waiting queue over a trace of requests, with step times from a "
               "latency model, and reports times, rates and every breach of what must hold."};
  tandem::declare(&app, &arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return tandem::run(&arguments);
}
