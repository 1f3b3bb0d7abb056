/* LD_PRELOAD: what a program does to the files whose path begins with DISK_PREFIX.
   DISK_RECORD=FILE  every write, truncation, sync, unlink and rename goes there, in order (format: struct record).
   DISK_FAULT=FILE   while that file exists, writes and syncs fail with EIO. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct record {
  uint8_t kind; /* 'w'rite 't'runcate 's'ync, of the folder: 'd', 'u'nlink 'r'ename */
  uint8_t unused;
  uint16_t path_bytes;
  uint32_t data_bytes; /* of a rename: the new path */
  int64_t offset;      /* of a truncation: the new size */
} __attribute__((packed));

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int is_ours(const char* path) {
  const char* prefix = getenv("DISK_PREFIX");
  return prefix && strncmp(path, prefix, strlen(prefix)) == 0 && !strstr(path, "-shm");
}
static int path_of(int fd, char* path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, 4000);
  if (n <= 0) n = 0;
  path[n] = 0;
  return is_ours(path);
}
/* The folder of our files, whose sync makes unlinks and renames last. */
static int is_our_folder(int fd, char* path) {
  const char* prefix = getenv("DISK_PREFIX");
  int ours = path_of(fd, path); /* fills path whatever it is */
  size_t n = strlen(path);
  return !ours && prefix && n > 0 && strncmp(prefix, path, n) == 0 && prefix[n] == '/' && !strchr(prefix + n + 1, '/');
}
static int fails(void) {
  const char* switch_file = getenv("DISK_FAULT");
  return switch_file && access(switch_file, F_OK) == 0;
}
static void note(char kind, const char* path, int64_t offset, const void* data, size_t n) {
  const char* file = getenv("DISK_RECORD");
  if (!file) return;
  struct record r = {(uint8_t)kind, 0, (uint16_t)strlen(path), (uint32_t)n, offset};
  pthread_mutex_lock(&mutex);
  int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  syscall(SYS_write, fd, &r, sizeof r);
  syscall(SYS_write, fd, path, r.path_bytes);
  if (n) syscall(SYS_write, fd, data, n);
  close(fd);
  pthread_mutex_unlock(&mutex);
}

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))

static ssize_t do_pwrite(const char* name, int fd, const void* data, size_t n, off_t at) {
  char path[4096];
  int ours = path_of(fd, path);
  if (ours && fails()) return errno = EIO, -1;
  ssize_t put = REAL(name, ssize_t(*)(int, const void*, size_t, off_t))(fd, data, n, at);
  if (ours && put > 0) note('w', path, at, data, (size_t)put);
  return put;
}
ssize_t pwrite(int fd, const void* data, size_t n, off_t at) { return do_pwrite("pwrite", fd, data, n, at); }
ssize_t pwrite64(int fd, const void* data, size_t n, off_t at) { return do_pwrite("pwrite64", fd, data, n, at); }

static int do_truncate(const char* name, int fd, off_t size) {
  char path[4096];
  int ours = path_of(fd, path);
  if (ours && fails()) return errno = EIO, -1;
  int rc = REAL(name, int (*)(int, off_t))(fd, size);
  if (ours && rc == 0) note('t', path, size, 0, 0);
  return rc;
}
int ftruncate(int fd, off_t size) { return do_truncate("ftruncate", fd, size); }
int ftruncate64(int fd, off_t size) { return do_truncate("ftruncate64", fd, size); }

static int do_sync(const char* name, int fd) {
  char path[4096];
  int ours = path_of(fd, path);
  if (ours && fails()) return errno = EIO, -1;
  int rc = REAL(name, int (*)(int))(fd);
  if (ours && rc == 0) note('s', path, 0, 0, 0);
  if (!ours && rc == 0 && is_our_folder(fd, path)) note('d', path, 0, 0, 0);
  return rc;
}
int fsync(int fd) { return do_sync("fsync", fd); }
int fdatasync(int fd) { return do_sync("fdatasync", fd); }

int unlink(const char* path) {
  int rc = REAL("unlink", int (*)(const char*))(path);
  if (rc == 0 && is_ours(path)) note('u', path, 0, 0, 0);
  return rc;
}
int rename(const char* from, const char* to) {
  int rc = REAL("rename", int (*)(const char*, const char*))(from, to);
  if (rc == 0 && is_ours(from)) note('r', from, 0, to, strlen(to));
  return rc;
}
