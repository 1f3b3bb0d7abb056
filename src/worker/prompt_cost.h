// What a prompt takes here, alone, as a fixed part and a part a token: two lengths through the whole engine, for
// tandemd's choice of who computes which prompts.
#pragma once

#include <functional>

#include "base/status.h"
#include "worker/model_load.h"

namespace tandem {

// Sets model->info.prompt_fixed_us and prompt_token_ns (at least 1); leaves them 0 where the context is too short to tell
// two lengths apart. On the engine thread, before anybody is served; the pages are free again afterwards. An error says
// that the model cannot compute a prompt.
Status measure_prompts(Engine* engine, LoadedModel* model, const TakeEvents& take_events);

}  // namespace tandem
