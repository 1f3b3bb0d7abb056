// Text of others (a model, a server, a file) as a terminal may get it: it moves no cursor, sets no title, fills no clipboard. Pure.
#pragma once

#include <string>
#include <string_view>

namespace tandem::ctl {

// Valid UTF-8 stays as it is but for control characters (C0, DEL, C1), each of which becomes `instead`; those in `kept` stay.
std::string terminal_text(std::string_view text, char instead = '?', std::string_view kept = "");

}  // namespace tandem::ctl
