// Texts of our own through the whole engine, before anybody is served: to see that it works, to measure it, to warm it up.
// On the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace tandem {

// The engine's events since the last call.
using TakeEvents = std::function<EngineEvents()>;

constexpr uint64_t kStartupId = ~uint64_t{0};  // one ends before the next begins; of several at once the others count down from it

// n ids from all over the vocabulary. Those of two salts differ from the first one on, so that the prefix cache has
// nothing of the second.
std::vector<int32_t> startup_prompt(int n, int salt, int vocab_size);
// The likeliest max_tokens behind the prompt, past any end token.
EngineRequest startup_request(std::vector<int32_t> prompt, uint32_t max_tokens);
// Until the text has ended; `on_events`, if not empty, sees what each turn brought. kDataLoss "FAILURE: why": it ended
// otherwise.
Status run_startup_text(Engine* engine, EngineRequest request, const TakeEvents& take_events, const std::string& failure,
                        const std::function<void(const EngineEvents&)>& on_events = {});

}  // namespace tandem
