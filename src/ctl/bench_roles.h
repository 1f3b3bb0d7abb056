// `tandem bench --roles`: the same clients against a tandemd of one worker of both roles and against one of the
// roles given, so that the two shapes can be compared on this machine: time to first token, gaps between tokens,
// output, and what the handoff of K/V moves.
#pragma once

#include "base/status.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

// "prefill:1,decode:1" or "both:2" as settings `workers.*`. kInvalidArgument names what is wrong.
Result<std::vector<std::string>> role_settings(const std::string& roles);
int bench_roles(const BenchOptions& options);

}  // namespace tandem::ctl
