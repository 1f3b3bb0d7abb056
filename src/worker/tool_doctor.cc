// tandem doctor, the part that needs model code: processor, kernels against their reference, what
// memory and arithmetic reach, and whether a model can be served. Lines as in ctl/verb_doctor.cc.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <tuple>

#include "base/config.h"
#include "base/process_memory.h"
#include "cpu/arena.h"
#include "cpu/cgroup_quota.h"
#include "cpu/cpu_topology.h"
#include "cpu/dense_choice.h"
#include "cpu/isa_select.h"
#include "kernels/self_check.h"
#include "model/weights.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "worker/machine_peak.h"
#include "worker/memory_plan.h"
#include "worker/model_load.h"
#include "worker/tool_args.h"
#include "worker/tool_model.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {

namespace {

constexpr int64_t kSupervisorBytes = 20 << 20;  // tandemd under load, which does not run here
constexpr double kSlowReadBytesPerS = 5e9;  // one channel of slow DDR4 reaches twice that

struct Report {
  bool has_failure = false;
  void line(const char* verdict, const std::string& what, const std::string& found,
            const std::string& remedy = "") {
    std::printf("%-4s  %-24s %s\n", verdict, what.c_str(), found.c_str());
    if (!remedy.empty()) std::printf("      %-24s remedy: %s\n", "", remedy.c_str());
    std::fflush(stdout);
    has_failure |= std::string_view(verdict) == "fail";
  }
};

void check_processor(const CpuInfo& cpu, const std::string& force, Report* report) {
  report->line(
      "pass", "processor",
      fmt::format("{}, {} usable cores ({})", cpu.model_name, cpu.n_usable_cores, cpu.limit));
  report->line("pass", "topology", describe(machine_topology()));
  report->line("pass", "cpu quota",
               cpu.quota_cores > 0 ? fmt::format("{:.2f} cores, enough for {} threads", cpu.quota_cores,
                                                 threads_of_quota(cpu.quota_cores))
                                   : std::string("none"));
  report->line("pass", "features", fmt::format("{}", fmt::join(cpu.features, " ")));
  const auto chosen = select_kernels(cpu, force);
  if (!chosen.ok()) {
    report->line("fail", "kernels", chosen.status().message(),
                 "take out cpu.force_isa or --force-isa");
    return;
  }
  if (std::string_view((*chosen)->isa) == "ref") {
    report->line("warn", "kernels", "ref",
                 "this processor has none of the fast instruction sets: serving will be slow");
  } else {
    report->line("pass", "kernels", (*chosen)->isa);
  }
}

void check_column(const KernelTable& table, uint8_t* workspace, Report* report) {
  SelfCheckResult results[kSelfCheckOps];
  const int n = self_check(table, workspace, results);
  for (int i = 0; i < n; ++i) {
    const SelfCheckResult& r = results[i];
    report->line(r.ok ? "pass" : "fail", fmt::format("{} {}", table.isa, r.op),
                 fmt::format("error {:.3g}, allowed {:.3g}", r.max_error, r.bound),
                 r.ok ? ""
                      : "this processor computes wrongly: check cooling and memory, or force "
                        "another set with "
                        "cpu.force_isa");
  }
}

// Every column that this processor can run, not only the chosen one.
void check_kernels(const CpuInfo& cpu, Report* report) {
  const std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(64, kSelfCheckBytes),
                                                         std::free);
  if (!workspace)
    return report->line("fail", "kernels", "no memory for their check", "free some memory");
  int n_columns = 0;
  const KernelColumn* columns = kernel_columns(&n_columns);
  for (int c = 0; c < n_columns; ++c) {
    const auto table = select_kernels(cpu, columns[c].table->isa);
    if (table.ok()) check_column(**table, static_cast<uint8_t*>(workspace.get()), report);
  }
}

void check_threads(const CpuInfo& cpu, int n_threads, Report* report) {
  const auto places = team_places(machine_topology(), n_threads);
  std::string found = fmt::format("a team of {}, placed by the kernel", n_threads);
  if (!places.empty()) {
    found = fmt::format("a team of {}, pinned to", n_threads);
    for (const std::vector<int>& cpus : places) found += fmt::format(" {}", fmt::join(cpus, "+"));
  }
  if (n_threads > machine_topology().n_cpus()) {
    report->line("warn", "threads", found, "more threads than processors: they wait for each other; lower cpu.threads");
  } else if (cpu.quota_cores > 0 && n_threads > cpu.quota_cores + 1) {
    report->line("warn", "threads", found, "more threads than the control group's quota pays for; lower cpu.threads");
  } else {
    report->line("pass", "threads", found);
  }
}

// Read bandwidth behind small pages was half of that behind huge ones in a virtual machine, a few percent less on
// plain hardware.
void check_huge_pages(Report* report) {
  constexpr size_t kBytes = 32u << 20;
  const auto before = read_process_memory();
  const auto arena = Arena::allocate(kBytes, "a check of huge pages");
  const auto after = read_process_memory();
  if (!before.ok() || !after.ok() || !arena.ok())
    return report->line("warn", "huge pages", "the kernel does not tell", "mount /proc");
  const int64_t huge = after->private_huge_bytes - before->private_huge_bytes;
  if (huge >= static_cast<int64_t>(kBytes / 2)) return report->line("pass", "huge pages", "given to weights and buffers");
  report->line("warn", "huge pages", "not given: reading weights is slower",
               "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

void check_speed(const ToolContext& context, int n_threads, Report* report) {
  const auto kernels = select_kernels(context.cpu, context.args.text("--force-isa", ""));
  if (!kernels.ok()) return;  // said already
  const MachinePeak peak = measure_machine(**kernels, n_threads);
  const std::string found =
      fmt::format("{:.1f} GB/s with {} threads", peak.read_bytes_per_s / 1e9, n_threads);
  if (peak.read_bytes_per_s < kSlowReadBytesPerS) {
    report->line("warn", "memory bandwidth", found,
                 "decoding is bound by it: check that all memory channels are filled");
  } else {
    report->line("pass", "memory bandwidth", found);
  }
  report->line("pass", "integer peak", fmt::format("{:.0f} Gop/s int8", peak.int8_ops_per_s / 1e9));
}

std::vector<const WeightView*> matrices_of(const ModelWeights& weights) {
  std::vector<const WeightView*> all = {&weights.token_embedding, &weights.output};
  for (const LayerWeights& l : weights.layers)
    for (const WeightView* w : {&l.wq, &l.wk, &l.wv, &l.wo, &l.w_gate, &l.w_up, &l.w_down}) all.push_back(w);
  return all;
}

Result<DenseSpeed> measure_weights(const DenseLibrary& library, const WeightView& w, const KernelTable& kernels, OmpTeam* team) {
  const size_t n_bytes = kernels.packed_bytes(w.type, w.n_rows, w.n_cols);
  CHECK_ASSIGN(Arena packed, Arena::allocate(n_bytes, "packed weights"));
  kernels.pack_tiles(w.type, w.data, w.n_rows, w.n_cols, 0, (w.n_rows + kTileRows - 1) / kTileRows, packed.data());
  return measure_dense(library, {w.type, w.n_rows, w.n_cols, packed.data()}, kernels, team);
}

// Our kernels beside the library, for each shape of the model's dense weights: what cpu.deterministic = false would choose.
void check_dense(const ModelWeights& weights, const KernelTable& kernels, int n_threads, Report* report) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  std::set<std::tuple<GgmlType, int64_t, int64_t>> seen;
  const auto library = DenseLibrary::open();
  OmpTeam team(n_threads);
  for (const WeightView* w : matrices_of(weights)) {
    const int64_t copy = DenseLibrary::copy_bytes(w->type, w->n_rows, w->n_cols);
    if (copy == 0 || copy > kMostBytes || !seen.insert({w->type, w->n_rows, w->n_cols}).second) continue;
    if (!library.ok()) return report->line("pass", "dense weights", "by our kernels; " + library.status().message());
    const std::string what = fmt::format("{} {} x {}", quant_traits(static_cast<uint32_t>(w->type))->name, w->n_rows, w->n_cols);
    const auto speed = measure_weights(**library, *w, kernels, &team);
    if (!speed.ok()) {
      report->line("warn", what, speed.status().message(), "none is needed: our kernels serve it");
      continue;
    }
    report->line("pass", what,
                 fmt::format("ours {:.0f} Gflop/s, {} {:.0f}: {}", speed->own_flops_per_s / 1e9, (*library)->name(),
                             speed->library_flops_per_s / 1e9,
                             speed->library_wins() ? "the library's, with cpu.deterministic = false" : "ours"));
  }
}

// As serving would take it with the operator's settings (--text-fd).
Status check_memory(const ToolContext& context, const GgufModel& file, const ModelConfig& config,
                    const ModelWeights& weights, Report* report) {
  Config settings;
  if (context.args.text_fd >= 0) {
    CHECK_ASSIGN(const std::string text, read_tool_text(context.args));
    CHECK_OK(config_load_text(text, "configuration from tandem", &settings));
  }
  CHECK_ASSIGN(const KernelTable* kernels,
               select_kernels(context.cpu, context.args.text("--force-isa", settings.cpu_force_isa)));
  const CpuBackendOptions backend = serving_options(settings, context.cpu, *kernels);
  HostFacts host;
  host.cpu = context.cpu;
  host.memory_bytes = context.memory_bytes;
  const int context_tokens = settings.model_context_tokens > 0
                                 ? static_cast<int>(std::min<int64_t>(settings.model_context_tokens, config.context_tokens))
                                 : config.context_tokens;
  file.release_pages();
  CHECK_ASSIGN(const ipc::MemoryPlan plan,
               plan_memory({config, weights, backend, settings, host, context_tokens, kSupervisorBytes}));
  const Status fits = check_memory_plan(plan);
  const char* more = config_has_lean_file(settings) ? "; the file of weights.lean comes on top, or is left out where it does not fit" : "";
  if (fits.ok()) report->line("pass", "memory", describe(plan) + more);
  else report->line("fail", "memory", fits.message(), "serving would be refused with exit code 78");
  check_dense(weights, *kernels, backend.n_threads, report);
  return ok_status();
}

Status check_model(const ToolContext& context, Report* report) {
  const ToolArgs& args = context.args;
  CHECK_ASSIGN(const auto file, open_tool_model(args));
  CHECK_ASSIGN(const ModelConfig config, read_model_config(*file));
  CHECK_ASSIGN(const ModelWeights weights, load_weights(*file, config));
  report->line("pass", "model",
               fmt::format("{}: {}, {} parameters, context {}", file->name(), config.architecture,
                           config.n_parameters, config.context_tokens));
  CHECK_ASSIGN(Vocabulary vocabulary, read_vocabulary(*file));
  CHECK_ASSIGN(const auto tokenizer, Tokenizer::create(vocabulary));
  report->line("pass", "vocabulary", fmt::format("{} tokens", tokenizer->n_tokens()));
  if (vocabulary.chat_template.empty()) {
    report->line("warn", "chat template", "none in the file",
                 "use /v1/completions, or a file with a template");
  } else if (const auto parsed = ChatTemplate::create(vocabulary.chat_template, vocabulary);
             !parsed.ok()) {
    report->line("warn", "chat template", parsed.status().message(),
                 "chat is refused; use /v1/completions");
  } else {
    report->line("pass", "chat template", "usable");
  }
  return check_memory(context, *file, config, weights, report);
}

}  // namespace

Result<int> tool_doctor(const ToolContext& context) {
  Report report;
  CHECK_ASSIGN(const int64_t threads, context.args.number("--threads", 0, 0, 1024));
  const int n_threads = threads > 0 ? static_cast<int>(threads) : context.cpu.n_usable_cores;
  check_threads(context.cpu, n_threads, &report);
  check_huge_pages(&report);
  check_processor(context.cpu, context.args.text("--force-isa", ""), &report);
  check_kernels(context.cpu, &report);
  check_speed(context, n_threads, &report);
  if (!context.args.model_fds.empty()) {
    const Status status = check_model(context, &report);
    if (!status.ok())
      report.line("fail", "model", status.message(), "fetch the file again, or take another model");
  }
  return report.has_failure ? 1 : 0;
}

}  // namespace tandem
