// Changes one key in a configuration file and nothing else: comments and all other lines stay as they are.
#pragma once

#include <string>

#include "base/status.h"

namespace tandem::ctl {

// `value` as written in TOML ("\"127.0.0.1:80\""), on one line. The key's line is replaced; without one, the first that is commented
// out in its section; else a line is added behind the section's header; else the section at the end. kInvalidArgument, naming
// `file`: broken TOML, or written so that this would change something else (`server.listen = …`, an inline table).
Result<std::string> with_toml_key(const std::string& text, const std::string& file, const std::string& section, const std::string& name,
                                  const std::string& value);

// Replaces a file in one step, written through; mode and owner stay, for a new file they are `mode` and, as root,
// root and `group` (empty: root).
Status replace_file(const std::string& path, const std::string& text, unsigned mode, const std::string& group);

}  // namespace tandem::ctl
