#include "api/listen_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tandem::api {
namespace {

constexpr int kBacklog = 512;  // connections the kernel holds while we are busy

struct FreeAddresses {
  addrinfo* list = nullptr;
  ~FreeAddresses() {
    if (list != nullptr) freeaddrinfo(list);
  }
};

bool is_loopback_v6(const in6_addr& a) {
  return IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127);
}

Result<UniqueFd> bind_one(const addrinfo& info, const std::string& address) {
  UniqueFd fd(socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno_status(errno, "cannot make a socket for server.listen " + address);
  int one = 1;  // no SO_REUSEPORT: a second daemon on the port must fail, not share it
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd.get(), info.ai_addr, info.ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0)
    return errno_status(errno, "cannot listen on server.listen " + address);
  return fd;
}

}  // namespace

std::string BoundAddress::text() const {
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

namespace {

// All addresses that server.listen means; the list is never empty.
Status resolve(const std::string& address, FreeAddresses* found) {
  size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon == std::string::npos ? 0 : colon);
  std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  bool is_port = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos &&
                 std::stoi(port) <= 65535;
  if (host.empty() || !is_port)
    return invalid_argument("server.listen must be address:port with a port from 0 to 65535, got \"" + address + "\"");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found->list);
  if (error != 0)
    return invalid_argument("server.listen: \"" + host + "\" is no address of this machine (" + gai_strerror(error) + ")");
  return ok_status();
}

Result<BoundAddress> describe(const sockaddr_storage& storage) {
  BoundAddress bound;
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    auto* in = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
    bound.port = ntohs(in->sin_port);
    bound.is_loopback = (ntohl(in->sin_addr.s_addr) >> 24) == 127;
  } else if (storage.ss_family == AF_INET6) {
    auto* in = reinterpret_cast<const sockaddr_in6*>(&storage);
    inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
    bound.port = ntohs(in->sin6_port);
    bound.is_loopback = is_loopback_v6(in->sin6_addr);
    bound.is_ipv6 = true;
  } else {
    return invalid_argument("the listening socket is not a TCP socket");
  }
  bound.host = text;
  return bound;
}

}  // namespace

Result<UniqueFd> listen_on(const std::string& address) {
  FreeAddresses found;
  CHECK_OK(resolve(address, &found));
  return bind_one(*found.list, address);
}

Result<BoundAddress> bound_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    return errno_status(errno, "cannot ask the listening socket for its address");
  return describe(storage);
}

Status adopt_socket(int fd, const std::string& address, const BoundAddress& bound) {
  if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
    return errno_status(errno, "cannot adopt the socket handed over by systemd");
  FreeAddresses found;
  CHECK_OK(resolve(address, &found));
  for (const addrinfo* one = found.list; one != nullptr; one = one->ai_next) {
    sockaddr_storage storage{};
    std::memcpy(&storage, one->ai_addr, one->ai_addrlen);
    auto wanted = describe(storage);
    if (wanted.ok() && wanted->host == bound.host && (wanted->port == bound.port || wanted->port == 0)) return ok_status();
  }
  return invalid_argument("server.listen is " + address + ", but the socket handed over by systemd (tandem.socket) is bound to " +
                          bound.text() + "; set both with: tandem configure listen " + address);
}

}  // namespace tandem::api
