// Files and short texts over HTTP(S). Over libcurl, which only download.cc sees.
#pragma once

#include <string>

#include "base/status.h"
#include "ctl/model_store.h"

namespace tandem::ctl {

// Into `to`, going on behind the bytes that are there if the server still has the same file (its ETag is remembered in
// `to`.etag, with how many bytes are on the disk for good). Space is checked once the size is known. At most 10
// redirections, to http and https only.
Status download(const std::string& url, const std::string& to, const ModelStore& store);

// At most `max_bytes`.
Result<std::string> download_text(const std::string& url, size_t max_bytes);

}  // namespace tandem::ctl
