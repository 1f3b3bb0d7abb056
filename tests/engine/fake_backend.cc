#include "fake_backend.h"

#include <algorithm>

namespace tandem {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64's finalizer
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27, x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
uint64_t cell_hash(int32_t token, int pos, WeightSet set) {
  return mix((static_cast<uint64_t>(token) << 32) + pos + 1 + (set == WeightSet::kLean ? uint64_t{1} << 60 : 0));
}
uint64_t combine(uint64_t everything, uint64_t window) { return mix(everything * 3 + mix(window)); }

int32_t draw(uint64_t row_hash, uint64_t seed, uint32_t choice, uint32_t position) {
  uint64_t h = mix(row_hash ^ mix(seed * 1000 + choice * 7 + (static_cast<uint64_t>(position) << 32)));
  return static_cast<int32_t>(h % (kFakeVocab - 1));
}
float forced_logprob(uint64_t row_hash, int32_t token) {
  return -static_cast<float>(mix(row_hash + token) % 1000) / 100.0f;
}
uint64_t hash_of(const FakeModel& model, const std::vector<int32_t>& tokens, int pos, const WeightSpans& weights) {
  uint64_t all = 0, window = 0;
  for (int p = 0; p <= pos; ++p) {
    uint64_t hash = cell_hash(tokens[p], p, weights.at(p, WeightSet::kFull));
    all += hash;
    if (p > pos - model.window) window += hash;
  }
  return combine(all, window);
}

}  // namespace

FakeBackend::FakeBackend(FakeModel model) : model_(model) {
  config_.vocab_size = kFakeVocab;
  config_.kv_groups.resize(2);
  config_.kv_groups[1].window = model.window;
}

std::vector<int64_t> FakeBackend::page_bytes() const {
  int64_t bytes = model_.page_size * static_cast<int64_t>(sizeof(Cell));
  return {bytes, bytes};
}

Status FakeBackend::reserve_pages(const std::vector<int>& n_pages) {
  std::vector<uint8_t*> memory;
  for (int n : n_pages)
    memory.push_back(reinterpret_cast<uint8_t*>(own_cells_.emplace_back(n * model_.page_size).data()));
  return place_pages(n_pages, memory);
}

Status FakeBackend::place_pages(const std::vector<int>& n_pages, const std::vector<uint8_t*>& memory) {
  for (size_t g = 0; g < n_pages.size(); ++g) {
    cells_.emplace_back(reinterpret_cast<Cell*>(memory[g]), n_pages[g] * model_.page_size);
    writer_.emplace_back(n_pages[g], 0);
  }
  return ok_status();
}

// A page written in this step must be in nobody else's table.
void FakeBackend::check_owners(const StepBatch& batch) {
  for (size_t g = 0; g < cells_.size(); ++g) {
    auto written_pages = [&](const StepItem& item, auto&& f) {
      for (int i = item.first_pos / model_.page_size; i * model_.page_size < item.first_pos + item.n_tokens; ++i)
        f(item.page_tables[g][i]);
    };
    for (size_t n = 0; n < batch.items.size(); ++n) {
      written_pages(batch.items[n], [&](PageId page) {
        if (page < 0 || page >= static_cast<int>(writer_[g].size())) return blame("no page to write to");
        if (writer_[g][page] != 0) blame("page written by two");
        writer_[g][page] = static_cast<int>(n) + 1;
      });
    }
    for (size_t n = 0; n < batch.items.size(); ++n) {
      const StepItem& item = batch.items[n];
      for (int i = 0; i * model_.page_size < item.first_pos + item.n_tokens; ++i) {
        PageId page = item.page_tables[g][i];
        if (page >= 0 && writer_[g][page] != 0 && writer_[g][page] != static_cast<int>(n) + 1)
          blame("page read by one and written by another");
      }
    }
    for (const StepItem& item : batch.items) {
      written_pages(item, [&](PageId page) {
        if (page >= 0) writer_[g][page] = 0;
      });
    }
  }
}

Status FakeBackend::forward(const StepBatch& batch) {
  if (!next_forward.ok()) return std::exchange(next_forward, {});
  check_owners(batch);
  if (!fault.empty()) return ok_status();
  last_batch = batch;
  max_tokens_seen = std::max(max_tokens_seen, static_cast<int>(batch.tokens.size()));
  max_items_seen = std::max(max_items_seen, static_cast<int>(batch.items.size()));
  ++n_steps_of[static_cast<size_t>(batch.weights)];
  n_tokens_run += static_cast<int64_t>(batch.tokens.size());
  row_hash_.clear(), row_is_nan_.clear();
  size_t next_row = 0;
  for (const StepItem& item : batch.items) {
    for (int t = 0; t < item.n_tokens; ++t) {
      int pos = item.first_pos + t, row = item.first_token + t;
      uint64_t sums[2] = {0, 0};
      bool is_nan = false;
      for (size_t g = 0; g < 2; ++g) {
        const PageId* table = item.page_tables[g];
        cells_[g][table[pos / model_.page_size] * model_.page_size + pos % model_.page_size] = {batch.tokens[row], pos, batch.weights};
      }
      if (next_row == batch.logit_rows.size() || batch.logit_rows[next_row] != row) continue;
      ++next_row;
      for (size_t g = 0; g < 2; ++g) {
        for (int p = g == 0 ? 0 : std::max(0, pos - model_.window + 1); p <= pos; ++p) {
          PageId page = item.page_tables[g][p / model_.page_size];
          if (page < 0) return blame("a visible page is gone"), ok_status();
          const Cell& cell = cells_[g][page * model_.page_size + p % model_.page_size];
          if (cell.pos != p) return blame("position " + std::to_string(p) + " was not computed"), ok_status();
          sums[g] += cell_hash(cell.token, p, cell.set);
          is_nan = is_nan || cell.token == kFakeNanToken;
        }
      }
      row_hash_.push_back(combine(sums[0], sums[1]));
      row_is_nan_.push_back(is_nan);
    }
  }
  if (next_row != batch.logit_rows.size()) blame("logit rows are not ascending");
  return ok_status();
}

Status FakeBackend::sample(std::span<const SampleRequest> requests, std::span<SampleResult> results) {
  if (!fault.empty()) return ok_status();
  for (size_t i = 0; i < requests.size(); ++i) {
    const SampleRequest& r = requests[i];
    uint64_t hash = row_hash_[r.logit_row];
    if (r.position != r.prompt.size() + r.generated.size() && r.forced_token < 0) blame("wrong position");
    if (row_is_nan_[r.logit_row]) {
      results[i].token = -1;
      continue;
    }
    results[i].token = r.forced_token >= 0 ? r.forced_token : draw(hash, r.params->seed, r.choice, r.position);
    if (r.n_top_logprobs >= 0) results[i].chosen = {results[i].token, forced_logprob(hash, results[i].token)};
  }
  return ok_status();
}

Status FakeBackend::copy_pages(std::span<const PageCopy> copies) {
  for (const PageCopy& c : copies) {
    std::copy_n(cells_[c.group].begin() + c.from * model_.page_size, model_.page_size,
                cells_[c.group].begin() + c.to * model_.page_size);
    ++n_copies;
  }
  return ok_status();
}

FakeText fake_text(const FakeModel& model, const EngineRequest& request, uint32_t choice, int limit,
                   int context, const WeightSpans& weights) {
  FakeText text;
  std::vector<int32_t> tokens = request.prompt;
  for (;;) {
    int n = static_cast<int>(tokens.size());
    bool is_too_long = text.tokens.empty() && n > limit;
    if (text.tokens.size() >= request.max_tokens && !is_too_long) text.end = SequenceEnd::kMaxTokens;
    else if (n >= limit) text.end = n >= context ? SequenceEnd::kContext : SequenceEnd::kPool;
    if (text.end != SequenceEnd::kNone) return text;
    int32_t token = draw(hash_of(model, tokens, n - 1, weights), request.sampling.seed, choice, static_cast<uint32_t>(n));
    if (token == kFakeEndToken && !request.sampling.ignore_eos) {
      text.end = SequenceEnd::kEndToken;
      return text;
    }
    tokens.push_back(token);
    text.tokens.push_back(token);
  }
}

float fake_prompt_logprob(const FakeModel& model, const std::vector<int32_t>& prompt, int pos, const WeightSpans& weights) {
  return forced_logprob(hash_of(model, prompt, pos - 1, weights), prompt[pos]);
}

}  // namespace tandem
