#include "supervisor/fleet.h"

#include <algorithm>
#include <utility>

#include "base/cpu_list.h"
#include "base/log.h"

namespace tandem {
namespace {

// Every worker of a configuration, prefill workers first: their pools are named to the others at their start.
std::vector<WorkerSpec> plan_workers(const Config& config) {
  std::vector<WorkerSpec> specs;
  auto add = [&](ipc::Role role, int64_t n, const std::string& cpus) {
    auto lists = split_cpu_lists(cpus, static_cast<int>(n));  // config_validate() has looked at it
    for (int i = 0; i < n; ++i) {
      WorkerSpec& spec = specs.emplace_back();
      spec.role = role;
      spec.number = i;
      if (lists.ok()) spec.cpus = (*lists)[static_cast<size_t>(i)];
    }
  };
  add(ipc::Role::kPrefill, config.workers_prefill, config.workers_prefill_cpus);
  add(ipc::Role::kDecode, config.workers_decode, config.workers_decode_cpus);
  add(ipc::Role::kBoth, config_both_workers(config), config.workers_both_cpus);
  return specs;
}

}  // namespace

Fleet::Fleet(const Config& config, Metrics* metrics, const Clock* clock, Hooks hooks)
    : metrics_(metrics), gauges_(metrics) {
  std::vector<WorkerSpec> specs = plan_workers(config);
  std::vector<int> prefill_fds;
  for (WorkerSpec& spec : specs) {
    auto pool = HostPoolFile::create(std::string("tandem-kv-") + ipc::role_name(spec.role) + std::to_string(spec.number));
    if (!pool.ok()) log_warn("a worker's KV pool will not outlive it", {{"reason", pool.status().message()}});
    pools_.push_back(pool.ok() ? std::make_unique<HostPoolFile>(std::move(*pool)) : nullptr);
    spec.pool_fd = pools_.back() ? pools_.back()->fd() : -1;
    if (spec.role == ipc::Role::kPrefill) prefill_fds.push_back(spec.pool_fd);
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    int lane = static_cast<int>(i);
    if (specs[i].role == ipc::Role::kDecode) specs[i].lent_pool_fds = prefill_fds;
    WorkerKeeper::Hooks keeper_hooks;
    keeper_hooks.on_up_changed = [this] { show_up(); };
    keeper_hooks.on_message = [hooks, lane](ipc::FromWorker m) { hooks.on_message(lane, std::move(m)); };
    keeper_hooks.on_end = [hooks, lane](const WorkerEnd& end) { hooks.on_end(lane, end); };
    keeper_hooks.has_work = [hooks, lane] { return hooks.has_work(lane); };
    keeper_hooks.wants_measurement = hooks.wants_measurement;
    keeper_hooks.is_packing_elsewhere = [this] {
      return std::any_of(keepers_.begin(), keepers_.end(), [](const auto& k) { return k->is_packing(); });
    };
    keepers_.push_back(std::make_unique<WorkerKeeper>(config, specs[i], pools_[i].get(), metrics, &gauges_, clock,
                                                      std::move(keeper_hooks)));
  }
}

std::vector<WorkerLink*> Fleet::links() const {
  std::vector<WorkerLink*> links;
  for (const auto& keeper : keepers_) links.push_back(keeper.get());
  return links;
}

const WorkerKeeper& Fleet::spokesman() const {
  const WorkerLink* link = &tandem::spokesman(links());
  return *static_cast<const WorkerKeeper*>(link);  // all of them are
}

bool Fleet::can_serve() const { return tandem::can_serve(links()); }

bool Fleet::is_stopped() const {
  return std::all_of(keepers_.begin(), keepers_.end(), [](const auto& k) { return k->is_stopped(); });
}

void Fleet::add_pollfds(std::vector<pollfd>* fds) const {
  for (const auto& keeper : keepers_) keeper->add_pollfds(fds);
}

void Fleet::turn() {
  for (const auto& keeper : keepers_) keeper->turn();
}

int64_t Fleet::next_wakeup_us() const {
  int64_t at = INT64_MAX;
  for (const auto& keeper : keepers_) at = std::min(at, keeper->next_wakeup_us());
  return at;
}

void Fleet::reload(const Config& config) {
  for (const auto& keeper : keepers_) keeper->reload(config);
}

void Fleet::set_log_level(const std::string& level) {
  for (const auto& keeper : keepers_) keeper->set_log_level(level);
}

void Fleet::stop() {
  for (const auto& keeper : keepers_) keeper->stop();
}

void Fleet::show_up() const {
  for (ipc::Role role : {ipc::Role::kBoth, ipc::Role::kPrefill, ipc::Role::kDecode}) {
    for (const char* device : {"cpu", "gpu"}) {
      auto n = std::count_if(keepers_.begin(), keepers_.end(), [&](const auto& k) {
        return k->role() == role && is_ready(*k) && k->model() && k->model()->device == device;
      });
      metrics_->set(Metric::kWorkerUp, static_cast<double>(n), {ipc::role_name(role), device});
    }
  }
}

}  // namespace tandem
