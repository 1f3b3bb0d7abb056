// What each section says is in status_sections.cc; this file is the page around them.
#include "api/status_page.h"

namespace tandem::api {
namespace {

constexpr const char kTemplate[] =
#include "status_page_html.inc"
    ;

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string render_page(const PageSections& sections, std::string_view nonce) {
  std::string_view rest = kTemplate;
  std::string out;
  while (true) {
    size_t begin = rest.find("{{"), end = rest.find("}}");
    if (begin == std::string_view::npos || end == std::string_view::npos) break;
    out += rest.substr(0, begin);
    std::string_view name = rest.substr(begin + 2, end - begin - 2);
    if (name == "nonce") out += nonce;
    for (const auto& [section, html] : sections)
      if (section == name) out += section == "title" ? escape_html(html) : html;
    rest.remove_prefix(end + 2);
  }
  return out + std::string(rest);
}

}  // namespace tandem::api
