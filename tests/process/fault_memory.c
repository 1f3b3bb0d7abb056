// LD_PRELOAD: memory for a KV pool is not there. TANDEM_FAULT names the call that answers ENOMEM from TANDEM_FAULT_BYTES
// on: `ftruncate` (a file of so many bytes), `mmap` (a shared mapping of so many), `populate` (so many committed already).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static int is_planted(const char* call, unsigned long long bytes) {
  const char *fault = getenv("TANDEM_FAULT"), *least = getenv("TANDEM_FAULT_BYTES");
  if (!fault || !least || strcmp(fault, call) != 0 || bytes < strtoull(least, NULL, 10)) return 0;
  errno = ENOMEM;
  return 1;
}

int ftruncate(int fd, off_t length) {
  static int (*real)(int, off_t);
  if (is_planted("ftruncate", (unsigned long long)length)) return -1;
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "ftruncate");
  return real(fd, length);
}
int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }

void* mmap(void* at, size_t length, int protection, int flags, int fd, off_t offset) {
  static void* (*real)(void*, size_t, int, int, int, off_t);
  if ((flags & MAP_SHARED) && (protection & PROT_WRITE) && is_planted("mmap", length)) return MAP_FAILED;
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "mmap");
  return real(at, length, protection, flags, fd, offset);
}
void* mmap64(void* at, size_t length, int protection, int flags, int fd, off_t offset) {
  return mmap(at, length, protection, flags, fd, offset);
}

int madvise(void* at, size_t length, int advice) {
  static int (*real)(void*, size_t, int);
  static unsigned long long committed;
  if (advice == MADV_POPULATE_WRITE) {
    unsigned long long now = __atomic_add_fetch(&committed, length, __ATOMIC_RELAXED);
    if (is_planted("populate", now)) return -1;
  }
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "madvise");
  return real(at, length, advice);
}
