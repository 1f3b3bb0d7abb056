// Plants one fault by name, so that the sanitizer builds prove that they report it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {
int shared_counter = 0;
volatile int sink = 0;

void race() {
  std::thread other([] { for (int i = 0; i < 100000; ++i) ++shared_counter; });
  for (int i = 0; i < 100000; ++i) ++shared_counter;
  other.join();
}
void use_after_free() {
  char* volatile bytes = static_cast<char*>(std::malloc(8));
  std::free(bytes);
  sink = bytes[3];
}
void leak() {
  void* lost = std::malloc(77);
  std::memset(lost, 1, 77);
  sink = static_cast<char*>(lost)[3];
  lost = nullptr;
}
void undefined() {
  volatile int big = 2147483647;
  sink = big + 1;
}
}  // namespace

int main(int argc, char** argv) {
  std::string fault = argc > 1 ? argv[1] : "";
  if (fault == "race") race();
  if (fault == "use_after_free") use_after_free();
  if (fault == "leak") leak();
  if (fault == "undefined") undefined();
  std::printf("fault %s was not reported\n", fault.c_str());
}
