// tandem bench: tokens a second of prefill and decode, and their share of what this machine can do
// at most. Runs the backend as the engine does: prompts in chunks one after another, then all
// sequences a token a step, each token drawn by the sampler. Shares: decode against plain reading
// of memory (weights once a step, and the K/V that attention reads), prefill against int8 dot
// products in registers.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "worker/machine_peak.h"
#include "worker/tool_args.h"
#include "worker/tool_model.h"

namespace tandem {

namespace {

struct Plan {
  int n_prompt = 512, n_gen = 128, n_repeats = 3, chunk = 256;
  std::vector<int> batches;
};

struct Row {
  int batch = 0;
  double prefill_tokens_per_s = 0, decode_tokens_per_s = 0, read_bandwidth_share = 0,
         int8_peak_share = 0;
};

Result<Plan> read_plan(const ToolArgs& args, const ModelConfig& config) {
  Plan plan;
  CHECK_ASSIGN(const int64_t prompt, args.number("--prompt", 512, 1, 1 << 20));
  CHECK_ASSIGN(const int64_t gen, args.number("--gen", 128, 1, 1 << 20));
  CHECK_ASSIGN(const int64_t repeats, args.number("--repeat", 3, 1, 100));
  CHECK_ASSIGN(const int64_t chunk, args.number("--chunk", 256, 1, 8192));
  CHECK_ASSIGN(plan.batches, parse_numbers("--batch", args.text("--batch", "1"), 1, 1024));
  plan.n_prompt = static_cast<int>(prompt);
  plan.n_gen = static_cast<int>(gen);
  plan.n_repeats = static_cast<int>(repeats);
  plan.chunk = static_cast<int>(chunk);
  if (prompt + gen > config.context_tokens) {
    return invalid_argument(
        fmt::format("--prompt {} and --gen {} are more than the model's context of {} tokens",
                    prompt, gen, config.context_tokens));
  }
  return plan;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Tokens that are all different, so that no row of the embedding is read twice from cache by
// accident.
std::vector<int32_t> make_prompt(int sequence, int n, int vocab_size) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    const uint64_t mixed = (static_cast<uint64_t>(sequence) << 32 | static_cast<uint64_t>(i + 1)) *
                           0x9E3779B97F4A7C15ull;
    ids[static_cast<size_t>(i)] =
        static_cast<int32_t>((mixed >> 32) % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

// Draws the next token of each of the last forward's logit rows, greedily.
Status draw(Backend* backend, int pos, std::vector<int32_t>* tokens) {
  SamplingParams greedy;
  greedy.temperature = 0;
  std::vector<SampleRequest> requests(tokens->size());
  std::vector<SampleResult> results(tokens->size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].logit_row = static_cast<int>(i);
    requests[i].params = &greedy;
    requests[i].position = static_cast<uint32_t>(pos);
  }
  CHECK_OK(backend->sample(requests, results));
  for (size_t i = 0; i < results.size(); ++i) (*tokens)[i] = results[i].token;
  return ok_status();
}

struct Seconds {
  double prefill = 0, decode = 0;
};

Result<Seconds> run_once(const ToolModel& model, StepRunner* runner, const Plan& plan, int batch) {
  Seconds seconds;
  std::vector<int32_t> next(static_cast<size_t>(batch)), one(1);
  int64_t start = monotonic_us();
  for (int s = 0; s < batch; ++s) {
    const std::vector<int32_t> prompt =
        make_prompt(s, plan.n_prompt, model.backend->config().vocab_size);
    for (int at = 0; at < plan.n_prompt; at += plan.chunk) {
      const size_t n = static_cast<size_t>(std::min(plan.chunk, plan.n_prompt - at));
      CHECK_OK(runner->feed(s, at, std::span(prompt).subspan(static_cast<size_t>(at), n), false));
    }
    CHECK_OK(draw(model.backend.get(), plan.n_prompt, &one));
    next[static_cast<size_t>(s)] = one[0];
  }
  seconds.prefill = static_cast<double>(monotonic_us() - start) / 1e6;
  start = monotonic_us();
  for (int i = 0; i < plan.n_gen; ++i) {
    CHECK_OK(runner->decode(plan.n_prompt + i, next));
    CHECK_OK(draw(model.backend.get(), plan.n_prompt + i + 1, &next));
  }
  seconds.decode = static_cast<double>(monotonic_us() - start) / 1e6;
  return seconds;
}

// Bytes that attention reads for one decode token, on average over the run.
double kv_bytes_per_decode_token(const ToolModel& model, const Plan& plan) {
  const std::vector<int64_t> page_bytes = model.backend->page_bytes();
  const double average = plan.n_prompt + (plan.n_gen + 1) / 2.0;
  double bytes = 0;
  for (size_t g = 0; g < page_bytes.size(); ++g) {
    const int window = model.backend->config().kv_groups[g].window;
    const double keys = window > 0 ? std::min<double>(window, average) : average;
    bytes += keys * static_cast<double>(page_bytes[g]) / model.page_size;
  }
  return bytes;
}

Result<Row> run_batch(const ToolModel& model, StepRunner* runner, const Plan& plan,
                      const MachinePeak& peak, int batch) {
  std::vector<double> prefill, decode;
  for (int i = 0; i < plan.n_repeats; ++i) {
    CHECK_ASSIGN(const Seconds seconds, run_once(model, runner, plan, batch));
    prefill.push_back(seconds.prefill);
    decode.push_back(seconds.decode);
    std::fprintf(stderr, "batch %d, run %d of %d: prefill %.2f s, decode %.2f s\n", batch, i + 1,
                 plan.n_repeats, seconds.prefill, seconds.decode);
  }
  const WeightTotals& w = model.weights;
  const double prefill_s = median(prefill), decode_s = median(decode);
  const double n_prompt_tokens = static_cast<double>(batch) * plan.n_prompt;
  const double step_bytes = static_cast<double>(w.layer_bytes + w.output_bytes) +
                            batch * kv_bytes_per_decode_token(model, plan);
  const double prefill_ops =
      2 * (n_prompt_tokens * static_cast<double>(w.layer_products) +
           static_cast<double>(batch) * static_cast<double>(w.output_products));
  Row row;
  row.batch = batch;
  row.prefill_tokens_per_s = n_prompt_tokens / prefill_s;
  row.decode_tokens_per_s = static_cast<double>(batch) * plan.n_gen / decode_s;
  row.read_bandwidth_share = step_bytes * plan.n_gen / decode_s / peak.read_bytes_per_s;
  row.int8_peak_share = prefill_ops / prefill_s / peak.int8_ops_per_s;
  return row;
}

int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

void print_json(const Plan& plan, const std::vector<Row>& rows) {
  std::string out;
  for (const Row& r : rows) {
    out += fmt::format(
        "{}{{\"batch\":{},\"prompt\":{},\"gen\":{},\"prefill_tokens_per_s\":{:.2f},\"decode_tokens_"
        "per_s\":{:.2f},"
        "\"read_bandwidth_share\":{:.4f},\"int8_peak_share\":{:.4f}}}",
        out.empty() ? "" : ",", r.batch, plan.n_prompt, plan.n_gen, r.prefill_tokens_per_s,
        r.decode_tokens_per_s, r.read_bandwidth_share, r.int8_peak_share);
  }
  std::printf("{\"results\":[%s],\"peak_memory_bytes\":%lld}\n", out.c_str(),
              static_cast<long long>(peak_memory_bytes()));
}

void print_table(const ToolModel& model, const Plan& plan, const MachinePeak& peak,
                 const std::vector<Row>& rows) {
  std::printf("%s, %s\n", model.file->name().c_str(), model.backend->description().c_str());
  std::printf("this machine: reads %.1f GB/s, int8 %.0f Gop/s (measured)\n",
              peak.read_bytes_per_s / 1e9, peak.int8_ops_per_s / 1e9);
  std::printf("%6s %7s %5s  %18s %18s  %14s %10s\n", "batch", "prompt", "gen", "prefill tokens/s",
              "decode tokens/s", "of bandwidth", "of int8");
  for (const Row& r : rows) {
    std::printf("%6d %7d %5d  %18.1f %18.1f  %12.1f %% %8.1f %%\n", r.batch, plan.n_prompt,
                plan.n_gen, r.prefill_tokens_per_s, r.decode_tokens_per_s,
                100 * r.read_bandwidth_share, 100 * r.int8_peak_share);
  }
  std::printf("peak memory %.1f MiB\n", static_cast<double>(peak_memory_bytes()) / (1 << 20));
}

}  // namespace

Result<int> tool_bench(const ToolContext& context) {
  CHECK_ASSIGN(ToolModel model, load_tool_model(context));
  CHECK_ASSIGN(const Plan plan, read_plan(context.args, model.backend->config()));
  const MachinePeak peak = measure_machine(*model.kernels, model.n_threads);
  if (peak.read_bytes_per_s <= 0 || peak.int8_ops_per_s <= 0)
    return exhausted("no memory to measure this machine with");
  const int most = *std::max_element(plan.batches.begin(), plan.batches.end());
  CHECK_ASSIGN(StepRunner runner, StepRunner::create(&model, most, plan.n_prompt + plan.n_gen));
  Plan warm_up = plan;
  warm_up.n_prompt = std::min(plan.n_prompt, 64);
  warm_up.n_gen = std::min(plan.n_gen, 4);
  CHECK_OK(run_once(model, &runner, warm_up, most).status());
  std::vector<Row> rows;
  for (int batch : plan.batches) {
    CHECK_ASSIGN(Row row, run_batch(model, &runner, plan, peak, batch));
    rows.push_back(row);
  }
  if (context.args.has("--json")) {
    print_json(plan, rows);
  } else {
    print_table(model, plan, peak, rows);
  }
  return 0;
}

}  // namespace tandem
