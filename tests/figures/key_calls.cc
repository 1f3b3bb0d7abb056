// Looks an API key up between marks that callgrind counts instructions by: run by key_figures.py under valgrind. The ring holds three
// keys; one call for each place of the first wrong byte of a stored digest, and one for each place of the right entry.
//   key_calls [planted]   planted: compares as memcmp would, which the check must see
#include <openssl/sha.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "api/keys.h"
#include "base/hex.h"
#include "tests/figures/counted_call.h"

using namespace tandem;

namespace {

using Digest = std::array<unsigned char, 32>;
constexpr const char* kKey = "tdm-0123456789abcdef";

Digest digest_of(const std::string& text) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

Digest wrong_at(size_t byte) {
  Digest digest = digest_of(kKey);
  for (size_t i = byte; i < digest.size(); ++i) digest[i] ^= 0x5A;
  return digest;
}

// What std::equal does, out of reach of the compiler's vectors.
[[gnu::noinline]] bool leaky_equal(const Digest& a, const Digest& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (const_cast<const volatile unsigned char&>(a[i]) != b[i]) return false;
  return true;
}

void measure_ring(const std::string& name, const std::string& folder, const std::array<Digest, 3>& digests, bool is_known) {
  std::string file;
  for (size_t i = 0; i < digests.size(); ++i) file += std::string(1, static_cast<char>('a' + i)) + ":" + hex_of(digests[i]) + "\n";
  Config config;
  config.auth_user_keys_file = folder + "/keys";
  config.auth_admin_key_file = folder + "/admin";
  std::ofstream(config.auth_user_keys_file) << file;
  std::ofstream(config.auth_admin_key_file) << "";
  api::KeyRing ring(config);
  if (!ring.reload().ok()) std::abort();
  const std::string header = std::string("Bearer ") + kKey;
  count_calls(name, [&] {
    if (ring.identify(header).has_value() != is_known) std::abort();
  });
}

}  // namespace

int main(int argc, char**) {
  char folder[] = "/tmp/tandem_keys_XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const Digest other = digest_of("another key");
  for (size_t byte : {0, 1, 8, 16, 31}) {
    const Digest wrong = wrong_at(byte);
    const std::string name = "unknown, first wrong byte " + std::to_string(byte);
    if (argc > 1)
      count_calls(name, [&] { (void)leaky_equal(wrong, digest_of(kKey)); });
    else
      measure_ring(name, folder, {wrong, other, wrong}, false);
  }
  for (size_t place = 0; place < 3 && argc == 1; ++place) {
    std::array<Digest, 3> digests = {other, other, other};
    digests[place] = digest_of(kKey);
    measure_ring("known, place " + std::to_string(place), folder, digests, true);
  }
  std::filesystem::remove_all(folder);
}
