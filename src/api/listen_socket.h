// The listening socket and what it is really bound to.
#pragma once

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tandem::api {

struct BoundAddress {
  std::string host;  // numeric
  int port = 0;
  bool is_loopback = false;
  bool is_ipv6 = false;
  std::string text() const;  // "127.0.0.1:8080", "[::1]:8080"
};

// "127.0.0.1:8080", "localhost:0", "[::]:8080". Errors name server.listen.
Result<UniqueFd> listen_on(const std::string& address);
// Makes an inherited socket ours: systemd hands it over blocking, and accept() must not block. An error if it is not the
// one that server.listen names; it names both and the way out.
Status adopt_socket(int fd, const std::string& address, const BoundAddress& bound);
// Of the socket itself, inherited or not.
Result<BoundAddress> bound_address(int fd);

}  // namespace tandem::api
