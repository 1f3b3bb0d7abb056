// How much processor time a control group grants, in cores. Versions 1 and 2.
#pragma once

#include <string>

namespace tandem {

// Of cgroup v2's cpu.max ("max 100000", "150000 100000"), or v1's quota and period joined by a blank
// ("-1 100000"). 0: no limit, or not understood.
double quota_of(const std::string& quota);

// The tightest quota of the groups in `membership` (the text of /proc/self/cgroup) and of their ancestors, as mounted
// under `root` ("/sys/fs/cgroup"). 0: none.
double cgroup_quota(const std::string& membership, const std::string& root);

// Threads for which `quota` pays: one more would be throttled, and all the others wait for it. 0: no limit.
int threads_of_quota(double quota);

}  // namespace tandem
