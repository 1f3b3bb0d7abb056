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

int AdmissionQueue::effective_class(const WaitingRequest& r) const {
  int64_t waited = r.waited_us + std::max<int64_t>(0, clock_->now_us() - r.since_us);
  return static_cast<int>(
      std::max<int64_t>(0, static_cast<int>(r.priority) - waited / limits_.ageing_us));
}

AdmissionQueue::Share AdmissionQueue::share(const std::string& client, int priority) const {
  auto shares = shares_.find(client);
  return shares == shares_.end() ? Share{} : shares->second[priority];
}

// Tokens that a key has had who begins to wait now.
int64_t AdmissionQueue::least_share(int priority) const {
  if (lanes_[priority].empty()) return level_[priority];
  int64_t least = INT64_MAX;
  for (const auto& [client, lane] : lanes_[priority]) least = std::min(least, share(client, priority).n_tokens);
  return least;
}

void AdmissionQueue::charge(const std::string& client, ipc::Priority priority, int64_t n_tokens) {
  shares_[client][static_cast<int>(priority)].n_tokens += n_tokens;
}

void AdmissionQueue::insert(WaitingRequest request, bool is_requeued) {
  int priority = static_cast<int>(request.priority);
  if (request.since_us < 0) request.since_us = request.enqueued_us;
  places_[request.id] = {priority, request.client, request.deadline_us, request.since_us, is_requeued};
  if (is_requeued) ++n_requeued_;
  if (request.deadline_us > 0) deadlines_.emplace(request.deadline_us, request.id);
  if (!lanes_[priority].contains(request.client)) {
    const int64_t least = least_share(priority);
    int64_t* had = &shares_[request.client][priority].n_tokens;
    *had = std::max(*had, least);
  }
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
  std::optional<Rank> first;                              // by class as asked
  std::array<std::optional<Rank>, kNumPriorities> lifted;  // of each class, by class reached
  for (const auto& lanes : lanes_) {
    for (const auto& [client, lane] : lanes) {
      auto r = std::find_if(lane.begin(), lane.end(),
                            [&](const WaitingRequest& w) { return may_run(w.id); });
      if (r == lane.end()) continue;
      int asked = static_cast<int>(r->priority);
      Rank rank{asked, share(client, asked), r->enqueued_us, r->id};
      if (!first || rank < *first) first = rank;
      Rank aged{effective_class(*r), std::get<1>(rank), r->enqueued_us, r->id};
      if (!lifted[asked] || aged < *lifted[asked]) lifted[asked] = aged;
    }
  }
  if (!first) return std::nullopt;
  if (n_since_aged_ + 1 < kAgedTurn) return std::get<3>(*first);
  int highest = std::get<0>(*first);
  std::optional<Rank> aged;  // the best that asked for less and has reached as much
  for (int p = highest + 1; p < kNumPriorities; ++p) {
    if (!lifted[p] || std::get<0>(*lifted[p]) > highest) continue;
    if (!aged || std::get<2>(*lifted[p]) < std::get<2>(*aged)) aged = lifted[p];
  }
  return std::get<3>(aged ? *aged : *first);
}

int64_t AdmissionQueue::waiting_us(uint64_t id) const {
  return std::max<int64_t>(0, clock_->now_us() - places_.at(id).since_us);
}

WaitingRequest AdmissionQueue::take(uint64_t id) {
  const bool is_new = !places_.at(id).is_requeued;
  WaitingRequest request = extract(id);
  int priority = static_cast<int>(request.priority);
  int64_t now = clock_->now_us();
  bool passes = false;  // others that asked for a higher class
  for (int p = 0; p < priority; ++p) passes = passes || !lanes_[p].empty();
  n_since_aged_ = passes ? 0 : n_since_aged_ + 1;
  request.waited_us += std::max<int64_t>(0, now - request.since_us);
  request.since_us = now;
  Share* share = &shares_[request.client][priority];
  share->last_turn = ++turn_;
  if (is_new) share->n_tokens += request.n_prompt;
  level_[priority] = share->n_tokens;
  forget_oldest_key();
  return request;
}

void AdmissionQueue::forget_oldest_key() {
  if (shares_.size() <= kMaxRememberedKeys) return;
  auto latest = [](const auto& key) {
    uint64_t turn = 0;
    for (const Share& s : key.second) turn = std::max(turn, s.last_turn);
    return turn;
  };
  shares_.erase(std::min_element(shares_.begin(), shares_.end(),
                                 [&](const auto& a, const auto& b) { return latest(a) < latest(b); }));
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

std::optional<int64_t> AdmissionQueue::oldest_since_us() const {
  std::optional<int64_t> oldest;
  for (const auto& lanes : lanes_)
    for (const auto& [client, lane] : lanes)
      for (const WaitingRequest& r : lane) {
        int64_t since = r.since_us < 0 ? r.enqueued_us : r.since_us;
        oldest = std::min(oldest.value_or(since), since);
      }
  return oldest;
}

}  // namespace tandem
