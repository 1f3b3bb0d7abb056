// Greedy pair merging, the core of both tokenizers: as long as some neighbouring symbols have a
// merge, the one with the lowest rank (the leftmost among equals) is done. DESIGN: a queue of
// (rank, left symbol) with stale entries dropped when they come up. Short words use a binary heap.
// A word of a million letters would spend its time in cache misses there, so long ones use one
// queue per rank: entries of a rank come up left to right and are nearly always pushed that way
// too.
#pragma once

#include <stddef.h>

#include <cstdint>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

namespace tandem {

constexpr uint32_t kNoRank = UINT32_MAX;

struct MergeSymbol {
  int32_t id = -1;      // token, or -1 for text without one of its own
  uint32_t begin = 0;   // bytes of the word it stands for
  uint32_t length = 0;  // 0: merged away
  int32_t prev = -1, next = -1;
  uint32_t rank = kNoRank;  // of merging it with the next symbol
  int32_t merged = -1;      // token which that gives
};

// Smallest (rank, position) first.
class HeapQueue {
 public:
  void push(uint32_t rank, uint32_t position) { heap_.push(uint64_t{rank} << 32 | position); }
  bool pop(uint32_t* rank, uint32_t* position) {
    if (heap_.empty()) return false;
    *rank = static_cast<uint32_t>(heap_.top() >> 32);
    *position = static_cast<uint32_t>(heap_.top());
    heap_.pop();
    return true;
  }

 private:
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<uint64_t>> heap_;
};

// The same order; a bucket a rank.
class BucketQueue {
 public:
  void push(uint32_t rank, uint32_t position) {
    Bucket& bucket = buckets_[rank];
    if (bucket.empty()) ranks_.push(rank);
    if (bucket.next == bucket.ascending.size()) bucket.ascending.clear(), bucket.next = 0;
    if (bucket.ascending.empty() || bucket.ascending.back() <= position) {
      bucket.ascending.push_back(position);
    } else {
      bucket.others.push(position);
    }
  }
  bool pop(uint32_t* rank, uint32_t* position) {
    if (ranks_.empty()) return false;
    *rank = ranks_.top();
    Bucket& bucket = buckets_[*rank];
    *position = bucket.pop();
    if (bucket.empty()) ranks_.pop();
    return true;
  }

 private:
  struct Bucket {
    std::vector<uint32_t> ascending;  // from `next` on
    size_t next = 0;
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<uint32_t>> others;
    bool empty() const { return next == ascending.size() && others.empty(); }
    uint32_t pop() {
      if (others.empty() || (next < ascending.size() && ascending[next] <= others.top())) {
        return ascending[next++];
      }
      const uint32_t position = others.top();
      others.pop();
      return position;
    }
  };
  std::unordered_map<uint32_t, Bucket> buckets_;
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<uint32_t>>
      ranks_;  // with entries, once each
};

// Merges the symbols of one word in place. find(left, right, &rank, &id): whether the pair has a
// merge.
template <typename Queue, typename Find>
void merge_with(std::vector<MergeSymbol>& symbols, Queue& queue, Find find) {
  const auto look = [&](int32_t left) {
    MergeSymbol& l = symbols[static_cast<size_t>(left)];
    l.rank = kNoRank;
    if (l.next < 0) return;
    if (find(l, symbols[static_cast<size_t>(l.next)], &l.rank, &l.merged)) {
      queue.push(l.rank, static_cast<uint32_t>(left));
    } else {
      l.rank = kNoRank;
    }
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) look(static_cast<int32_t>(i));
  uint32_t rank, position;
  while (queue.pop(&rank, &position)) {
    MergeSymbol& left = symbols[position];
    if (left.length == 0 || left.rank != rank) continue;  // stale
    MergeSymbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = left.merged;
    left.length += right.length;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0)
      symbols[static_cast<size_t>(left.next)].prev = static_cast<int32_t>(position);
    look(static_cast<int32_t>(position));
    if (left.prev >= 0) look(left.prev);
  }
}

template <typename Find>
void merge_symbols(std::vector<MergeSymbol>& symbols, Find find) {
  constexpr size_t kLongWord = 4096;  // symbols; the heap then still fits the first-level cache
  if (symbols.size() < kLongWord) {
    HeapQueue queue;
    merge_with(symbols, queue, find);
  } else {
    BucketQueue queue;
    merge_with(symbols, queue, find);
  }
}

}  // namespace tandem
