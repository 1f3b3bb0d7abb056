// One key changed in a file that people write by hand, and nothing else.
#include "ctl/toml_edit.h"

#include <catch2/catch.hpp>

namespace tandem::ctl {
namespace {

std::string edited(const std::string& text) {
  const auto out = with_toml_key(text, "t.toml", "server", "listen", "\"x:1\"");
  return out.ok() ? *out : "error: " + out.status().message();
}

}  // namespace

TEST_CASE("edit: the key's line, else a commented one, else behind the header, else a new section") {
  CHECK(edited("# a\n[server]\nport = 1\nlisten = \"y\"  # why\n[log]\nlevel = \"info\"\n") ==
        "# a\n[server]\nport = 1\nlisten = \"x:1\"\n[log]\nlevel = \"info\"\n");
  CHECK(edited("[server]\n# about listen\n# listen = \"y\"\nport = 1\n") == "[server]\n# about listen\nlisten = \"x:1\"\nport = 1\n");
  CHECK(edited("[log]\n# listen = 1\n[server]  # net\nport = 1") == "[log]\n# listen = 1\n[server]  # net\nlisten = \"x:1\"\nport = 1\n");
  CHECK(edited("[server]") == "[server]\nlisten = \"x:1\"\n");
  CHECK(edited("[log]\nlevel = \"info\"\n") == "[log]\nlevel = \"info\"\n[server]\nlisten = \"x:1\"\n");
  CHECK(edited("") == "[server]\nlisten = \"x:1\"\n");
  CHECK(edited("[server.tls]\ncert = \"c\"\n") == "[server.tls]\ncert = \"c\"\n[server]\nlisten = \"x:1\"\n");
}

TEST_CASE("edit: a key in use wins over a comment that looks like it") {
  CHECK(edited("[server]\n# listen = \"127.0.0.1:8080\"\nport = 1\nlisten = \"mine\"\n") ==
        "[server]\n# listen = \"127.0.0.1:8080\"\nport = 1\nlisten = \"x:1\"\n");
}

TEST_CASE("edit: what cannot be changed line by line is refused, with what to write") {
  const std::string remedy = "error: t.toml is written in a way that cannot be changed from here; set listen = \"x:1\" under [server] in it yourself";
  CHECK(edited("server = { listen = \"y\", port = 1 }\n") == remedy);
  CHECK(edited("server.listen = \"y\"\n") == remedy);
  CHECK(edited("[server]\nlisten = \"\"\"y\nz\"\"\"\n") == remedy);
  CHECK(edited("[log]\ntext = \"\"\"\n[server]\n\"\"\"\n") == remedy);
  CHECK(edited("[server]\nlisten = \n").rfind("error: t.toml:2: ", 0) == 0);
}

}  // namespace tandem::ctl
