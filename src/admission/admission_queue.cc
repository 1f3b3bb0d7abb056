#include "admission/admission_queue.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.h"

namespace tandem {
namespace {
// Shares of keys that have nothing waiting are forgotten beyond this many, oldest turns first: then
// such a key merely counts as new. Keys come from a file, so this is far above any real number.
constexpr size_t kMaxRememberedKeys = 4096;
}  // namespace

int AdmissionQueue::effective_class(const WaitingRequest& request, int64_t now_us) const {
  int64_t lifts = std::max<int64_t>(0, now_us - request.enqueued_us) / limits_.ageing_us;
  return static_cast<int>(std::max<int64_t>(0, static_cast<int>(request.priority) - lifts));
}

void AdmissionQueue::insert(WaitingRequest request, bool is_requeued) {
  int priority = static_cast<int>(request.priority);
  places_[request.id] = {priority, request.client, request.deadline_us, is_requeued};
  if (is_requeued) ++n_requeued_;
  if (request.deadline_us > 0) deadlines_.emplace(request.deadline_us, request.id);
  Lane& lane = lanes_[priority][request.client];
  auto later =
      std::upper_bound(lane.begin(), lane.end(), request.enqueued_us,
                       [](int64_t t, const WaitingRequest& r) { return t < r.enqueued_us; });
  lane.insert(later, std::move(request));
}

WaitingRequest AdmissionQueue::extract(uint64_t id) {
  auto it = places_.find(id);
  CHECK(it != places_.end());
  Place place = std::move(it->second);
  places_.erase(it);
  if (place.is_requeued) --n_requeued_;
  deadlines_.erase({place.deadline_us, id});
  auto& lanes = lanes_[place.priority];
  auto lane = lanes.find(place.client);
  auto at = std::find_if(lane->second.begin(), lane->second.end(),
                         [&](const WaitingRequest& r) { return r.id == id; });
  WaitingRequest request = std::move(*at);
  lane->second.erase(at);
  if (lane->second.empty()) lanes.erase(lane);
  return request;
}

std::optional<uint64_t> AdmissionQueue::youngest_below(int priority) const {
  for (int p = kNumPriorities - 1; p > priority; --p) {
    const WaitingRequest* youngest = nullptr;
    for (const auto& [client, lane] : lanes_[p]) {
      for (auto r = lane.rbegin(); r != lane.rend(); ++r) {
        if (places_.at(r->id).is_requeued) continue;
        if (youngest == nullptr || r->enqueued_us >= youngest->enqueued_us) youngest = &*r;
        break;
      }
    }
    if (youngest != nullptr) return youngest->id;
  }
  return std::nullopt;
}

Offer AdmissionQueue::offer(WaitingRequest request) {
  CHECK(places_.count(request.id) == 0);
  Offer result;
  if (places_.size() - n_requeued_ >= limits_.max_queue) {
    result.displaced = youngest_below(static_cast<int>(request.priority));
    if (!result.displaced) return result;
    extract(*result.displaced);
  }
  result.is_accepted = true;
  insert(std::move(request), false);
  return result;
}

void AdmissionQueue::requeue(WaitingRequest request) {
  CHECK(places_.count(request.id) == 0);
  insert(std::move(request), true);
}

std::optional<uint64_t> AdmissionQueue::next(const std::function<bool(uint64_t)>& may_run) const {
  using Rank = std::tuple<int, uint64_t, int64_t, uint64_t>;  // class, key's last turn, age, id
  std::optional<Rank> best;
  int64_t now = clock_->now_us();
  for (const auto& lanes : lanes_) {
    for (const auto& [client, lane] : lanes) {
      auto r = std::find_if(lane.begin(), lane.end(),
                            [&](const WaitingRequest& w) { return may_run(w.id); });
      if (r == lane.end()) continue;
      int cls = effective_class(*r, now);
      auto share = served_.find(client);
      uint64_t last_turn = share == served_.end() ? 0 : share->second[cls];
      Rank rank{cls, last_turn, r->enqueued_us, r->id};
      if (!best || rank < *best) best = rank;
    }
  }
  if (!best) return std::nullopt;
  return std::get<3>(*best);
}

void AdmissionQueue::take(uint64_t id) {
  WaitingRequest request = extract(id);
  served_[request.client][effective_class(request, clock_->now_us())] = ++turn_;
  if (served_.size() <= kMaxRememberedKeys) return;
  auto oldest = std::min_element(served_.begin(), served_.end(), [](const auto& a, const auto& b) {
    return *std::max_element(a.second.begin(), a.second.end()) <
           *std::max_element(b.second.begin(), b.second.end());
  });
  served_.erase(oldest);
}

bool AdmissionQueue::remove(uint64_t id) {
  if (places_.count(id) == 0) return false;
  extract(id);
  return true;
}

std::vector<uint64_t> AdmissionQueue::take_expired() {
  std::vector<uint64_t> expired;
  int64_t now = clock_->now_us();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    expired.push_back(deadlines_.begin()->second);
    extract(expired.back());
  }
  return expired;
}

std::optional<int64_t> AdmissionQueue::next_deadline_us() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

size_t AdmissionQueue::waiting(ipc::Priority priority) const {
  size_t n = 0;
  for (const auto& [client, lane] : lanes_[static_cast<int>(priority)]) n += lane.size();
  return n;
}

}  // namespace tandem
