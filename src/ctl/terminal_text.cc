#include "ctl/terminal_text.h"

namespace tandem::ctl {

std::string terminal_text(std::string_view text, char instead, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    const bool is_c1 = c == 0xC2 && next >= 0x80 && next < 0xA0;  // U+0080 to U+009F: some terminals take U+009B for ESC [
    const bool is_control = is_c1 || c < 0x20 || c == 0x7F;
    out += is_control && kept.find(text[i]) == std::string_view::npos ? instead : text[i];
    if (is_c1) ++i;
  }
  return out;
}

}  // namespace tandem::ctl
