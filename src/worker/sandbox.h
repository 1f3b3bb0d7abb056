// Locks the process in before it reads a byte of a model: no new privileges, no file opened any more (Landlock
// and seccomp), no network, no program started. Descriptors that are open stay usable. Threads made later are
// locked in too, earlier ones are not: enter before the first of them.
#pragma once

#include <string>

#include "base/status.h"

namespace tandem {

struct SandboxState {
  std::string landlock;  // "abi 3", or why not
  std::string seccomp;   // "on", or why not
};

// Dies with the parent, cannot gain privileges. Call first thing in main().
void harden_process();
// kInternal: the kernel offers the mechanism and refuses it all the same. A kernel without one of them, and a
// sanitizer build (whose runtime opens files at odd moments), is told in the state.
// has_device: the nodes of a CUDA device stay open to be opened, and ioctl is allowed.
Result<SandboxState> enter_sandbox(bool has_device = false);

}  // namespace tandem
