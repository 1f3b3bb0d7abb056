// Tells one state of a file from another without reading it.
#pragma once

#include <sys/stat.h>

#include <string>

namespace tandem {

// Device, inode, size and time of modification (ns), each with a comma behind it. A copy in place that keeps size and
// time goes unseen: where that matters, append file_change_stamp(). Any thread.
std::string file_stamp(const struct stat& st);

// The time of the last change of contents or attributes, in the same form.
std::string file_change_stamp(const struct stat& st);

}  // namespace tandem
