#include "supervisor/model_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/temp_folder.h"

using namespace tandem;

namespace {
struct Folder : testing::TempFolder {
  Config config;
  Folder() {
    std::filesystem::create_directory(path + "/models");
    config.paths_state_dir = path;
  }
  std::string put(const std::string& name) const { return TempFolder::put("models/" + name, name); }
};
}  // namespace

TEST_CASE("the only model of the state folder is found; none or several are told apart") {
  Folder f;
  CHECK(find_model(f.config).status().code() == StatusCode::kNotFound);
  f.put("readme.txt"), f.put(".hidden.gguf");
  CHECK(find_model(f.config).status().code() == StatusCode::kNotFound);
  std::string first = f.put("big-00001-of-00002.gguf");
  f.put("big-00002-of-00002.gguf");
  CHECK(*find_model(f.config) == first);
  f.put("other.gguf");
  Status several = find_model(f.config).status();
  CHECK(several.code() == StatusCode::kInvalidArgument);
  CHECK(several.message().find("other.gguf") != std::string::npos);
  CHECK(several.message().find("model.path") != std::string::npos);
  // tandem model default: a link beside the files; one that names a path is nobody's choice.
  std::string folder = first.substr(0, first.rfind('/'));
  REQUIRE(symlink("other.gguf", (folder + "/default").c_str()) == 0);
  CHECK(*find_model(f.config) == folder + "/other.gguf");
  unlink((folder + "/default").c_str());
  REQUIRE(symlink("../other.gguf", (folder + "/default").c_str()) == 0);
  CHECK(!find_model(f.config).ok());
  f.config.model_path = "/x/y.gguf";
  CHECK(*find_model(f.config) == "/x/y.gguf");
}

TEST_CASE("parts follow from the name") {
  CHECK(model_parts("/m/a-00001-of-00003.gguf") ==
        std::vector<std::string>{"/m/a-00001-of-00003.gguf", "/m/a-00002-of-00003.gguf",
                                 "/m/a-00003-of-00003.gguf"});
  for (const char* plain : {"/m/a.gguf", "/m/a-0001-of-0003.gguf", "/m/a-00004-of-00003.gguf",
                            "/m/a-00000-of-00003.gguf", "/m/a-00001-of-00003.bin",
                            "-00001-of-00000.gguf", "x", "/m/a-00001-of-99999.gguf"})
    CHECK(model_parts(plain) == std::vector<std::string>{plain});
}

TEST_CASE("the served name") {
  Config config;
  CHECK(served_model_name(config, "/m/Smol.Q4.gguf") == "Smol.Q4");
  CHECK(served_model_name(config, "/m/a-00001-of-00003.gguf") == "a");
  CHECK(served_model_name(config, "plain") == "plain");
  config.model_name = "house-model";
  CHECK(served_model_name(config, "/m/x.gguf") == "house-model");
}

TEST_CASE("opening: missing part, folder, FIFO") {
  Folder f;
  f.put("a-00001-of-00002.gguf");
  auto missing = open_model(f.path + "/models/a-00001-of-00002.gguf");
  CHECK(missing.status().code() == StatusCode::kNotFound);
  CHECK(missing.status().message().find("a-00002-of-00002.gguf") != std::string::npos);
  auto folder = open_model(f.path + "/models");
  CHECK(folder.status().message().find("folder") != std::string::npos);
  mkfifo((f.path + "/pipe.gguf").c_str(), 0600);
  CHECK(open_model(f.path + "/pipe.gguf").status().code() == StatusCode::kInvalidArgument);
  auto good = open_model(f.put("b.gguf"));
  REQUIRE(good.ok());
  CHECK((fcntl(good->fds[0].get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
  CHECK((fcntl(good->fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("the stamp changes with size, time, inode and presence") {
  Folder f;
  std::string path = f.put("m.gguf"), before = model_stamp(path);
  CHECK(model_stamp(path) == before);
  std::ofstream(path, std::ios::app) << "more";
  std::string longer = model_stamp(path);
  CHECK(longer != before);
  std::filesystem::rename(f.put("n.gguf"), path);
  CHECK(model_stamp(path) != longer);
  std::filesystem::remove(path);
  CHECK(model_stamp(path) == "-;");
  CHECK(model_mtime_s(path) == 0);
}

// As another user, because root may read everything.
TEST_CASE("a refusal names path, user and the missing permission") {
  Folder f;
  std::string path = f.put("m.gguf");
  chmod(f.path.c_str(), 0755);
  auto message_as_other = [&] {
    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    pid_t pid = fork();
    if (pid == 0) {
      if (geteuid() == 0 && (setegid(65534) != 0 || seteuid(65534) != 0)) _exit(1);
      std::string text = open_model(path).status().message();
      _exit(write(pipes[1], text.data(), text.size()) > 0 ? 0 : 1);
    }
    close(pipes[1]);
    char text[1000] = {};
    ssize_t n = read(pipes[0], text, sizeof text - 1);
    close(pipes[0]);
    waitpid(pid, nullptr, 0);
    return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
  };
  chmod(path.c_str(), 0);
  std::string file = message_as_other();
  INFO(file);
  CHECK(file.find(path) != std::string::npos);
  CHECK(file.find("user ") != std::string::npos);
  CHECK(file.find("permission r") != std::string::npos);
  chmod((f.path + "/models").c_str(), 0600);
  std::string folder = message_as_other();
  INFO(folder);
  CHECK(folder.find("permission x (search) on the folder " + f.path + "/models") !=
        std::string::npos);
  chmod((f.path + "/models").c_str(), 0700);
}
