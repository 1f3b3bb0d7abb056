// tandem serve: tandemd in the foreground, without root, systemd or installed files.
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>

#include "ctl/programs.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

// tandemd may look at the path after changing nothing about the folder, but its messages should be
// whole.
std::string absolute(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  char folder[PATH_MAX];
  return getcwd(folder, sizeof folder) ? std::string(folder) + "/" + path : path;
}

}  // namespace

std::vector<std::string> tandemd_arguments(const ServeOptions& options) {
  std::vector<std::string> arguments;
  const auto set = [&](const std::string& setting) {
    arguments.push_back("--set");
    arguments.push_back(setting);
  };
  if (!options.config_file.empty()) {
    arguments.push_back("--config");
    arguments.push_back(options.config_file);
  }
  if (!options.model.empty()) set("model.path=" + absolute(options.model));
  if (options.port)
    set("server.listen=" + options.listen_host + ":" + std::to_string(*options.port));
  if (!options.state_dir.empty()) {
    set("paths.state_dir=" + absolute(options.state_dir));
    set("paths.cache_dir=" + absolute(options.state_dir) + "/cache");
  }
  for (const std::string& setting : options.settings) set(setting);
  return arguments;
}

int verb_serve(const ServeOptions& options) {
  const auto program = find_tandemd();
  if (!program.ok())
    return std::fprintf(stderr, "tandem serve: %s\n", program.status().message().c_str()), 1;
  // A model may appear later (a mount, a copy that is under way): tandemd waits for it and /ready
  // says so.
  if (!options.model.empty() && access(options.model.c_str(), R_OK) != 0) {
    std::perror(("tandem serve: waiting for the model: " + options.model).c_str());
  }
  std::vector<std::string> arguments = tandemd_arguments(options);
  arguments.insert(arguments.begin(), *program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(program->c_str(), argv.data());
  std::perror(("tandem serve: cannot start " + *program).c_str());
  return 1;
}

}  // namespace tandem::ctl
