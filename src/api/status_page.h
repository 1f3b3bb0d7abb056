// The status page: the template status_page.html (embedded at build time) filled from /status.json. The server
// renders every section, so that the page is whole without JavaScript, and its event stream sends the same
// sections again when they change. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/json_value.h"

namespace tandem::api {

// Name (the element's id in the template) and inner HTML, everything foreign escaped. `title` is plain text.
using PageSections = std::vector<std::pair<std::string, std::string>>;

// `status`: the document of /status.json; members that are absent show as "not known".
PageSections render_sections(const JsonValue& status);
// `nonce` marks our own script and style for the content security policy.
std::string render_page(const PageSections& sections, std::string_view nonce);
std::string escape_html(std::string_view text);

}  // namespace tandem::api
