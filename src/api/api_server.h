// The REST API of tandemd: binds, serves, stops. Built by the supervisor, which hands in its InferenceService.
// Requests run on connection threads; start(), the reloads and stop() are for the owner's thread.
#pragma once

#include <memory>
#include <string>

#include "api/service.h"
#include "base/config.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tandem::api {

class ApiServer {
 public:
  struct Options {
    UniqueFd listen_fd;  // an inherited, listening socket; invalid: bind server.listen
  };
  // Loads the key files, binds, checks the binding rule on the socket really bound (a non-loopback address
  // needs a user key or server.allow_unauthenticated) and starts serving. `service` must outlive the server.
  static Result<std::unique_ptr<ApiServer>> start(const Config& config, InferenceService* service,
                                                  Options options);
  static Result<std::unique_ptr<ApiServer>> start(const Config& config, InferenceService* service);
  ~ApiServer();  // stops

  int port() const;             // the bound port, also when server.listen says 0
  std::string address() const;  // "127.0.0.1:8080", "[::1]:8080"
  // Reads the key files, the deny list and the TLS files again (SIGHUP). What has an error in it stays as it was.
  Status reload_files();
  void reload_limits(const Config& config);  // limits.* of requests that come from now on
  // A drain begins. An inherited socket outlives us: new connections are left waiting in it for our successor. On a
  // socket of our own they are still accepted, to be told to come back.
  void hand_over();
  // Closes the socket, ends idle connections, lets running replies end (streams still open get an error
  // event), joins all threads. Drain first: the service refuses new work while draining. Idempotent.
  void stop();

 private:
  struct Impl;
  explicit ApiServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::api
