/* LD_PRELOAD: what a program, and whatever it starts, does to the files whose path begins with DISK_PREFIX.
   DISK_RECORD=FILE  every write, sync and change of a name goes there, in order (format: struct record, path, data).
   DISK_FAULT=FILE   while that file exists, writes and syncs fail with EIO.
   DISK_KILL=N       a process is killed before its Nth pwrite to them or change of their size. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct record {
  uint8_t kind; /* 'w'rite 't'runcate 's'ync, of a folder: 'd'; 'o'pen for writing, without a name: 'a'; 'l'ink s'y'mlink 'm'kdir 'u'nlink 'r'ename */
  uint8_t unused;
  uint16_t path_bytes;
  uint32_t data_bytes; /* of a rename: the new path; of a symbolic link: what it names */
  int64_t offset;      /* of a truncation: the new size */
  uint64_t inode;
} __attribute__((packed));

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))

static const char *prefix, *fault;
static int record_fd = -1, kill_at, n_changes;
static char is_inherited[256]; /* descriptors of our files that were there at the start: a sandbox hides paths later */

static int is_ours(const char* path) { return prefix && strncmp(path, prefix, strlen(prefix)) == 0 && !strstr(path, "-shm"); }
static int path_of(int fd, char* path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, 4000);
  if (n < 0 && fd >= 0 && fd < (int)sizeof is_inherited && is_inherited[fd]) return path[0] = 0, 1;
  path[n > 0 ? n : 0] = 0;
  return is_ours(path);
}
/* The folder of our files, whose sync makes names last. */
static int is_our_folder(const char* path) {
  size_t n = strlen(path);
  return is_ours(path) || (prefix && n > 0 && strncmp(prefix, path, n) == 0 && prefix[n] == '/' && !strchr(prefix + n + 1, '/'));
}
static void maybe_die(void) {
  if (++n_changes == kill_at) raise(SIGKILL);
}
static int fails(void) { return fault && access(fault, F_OK) == 0; }

__attribute__((constructor)) static void begin(void) {
  prefix = getenv("DISK_PREFIX"), fault = getenv("DISK_FAULT");
  if (getenv("DISK_KILL")) kill_at = atoi(getenv("DISK_KILL"));
  char path[4096];
  for (int fd = 0; fd < (int)sizeof is_inherited; ++fd) is_inherited[fd] = (char)path_of(fd, path);
  const char* file = getenv("DISK_RECORD");
  if (!prefix || !file) return;
  int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  record_fd = fcntl(fd, F_DUPFD_CLOEXEC, 500); /* out of the way of whoever counts on low numbers */
  syscall(SYS_close, fd);
}

static void note(char kind, const char* path, uint64_t inode, int64_t offset, const void* data, size_t n) {
  if (record_fd < 0) return;
  int err = errno;
  struct record r = {(uint8_t)kind, 0, (uint16_t)strlen(path), (uint32_t)n, offset, inode};
  struct iovec parts[] = {{&r, sizeof r}, {(void*)path, r.path_bytes}, {(void*)data, n}};
  syscall(SYS_writev, record_fd, parts, n ? 3 : 2); /* in one piece: others append too */
  errno = err;
}
static uint64_t inode_of(int fd) {
  struct stat st;
  return fstat(fd, &st) == 0 ? st.st_ino : 0;
}
static void note_data(char kind, int fd, int64_t offset, const void* data, size_t n) { note(kind, "", inode_of(fd), offset, data, n); }

static void note_open(const char* path, int flags, int fd) {
  if (fd < 0 || !is_ours(path) || (flags & O_ACCMODE) == O_RDONLY) return;
  if ((flags & O_TMPFILE) == O_TMPFILE) return note('a', path, inode_of(fd), 0, 0, 0);
  note('o', path, inode_of(fd), 0, 0, 0);
  if (flags & O_TRUNC) note_data('t', fd, 0, 0, 0);
}
static int do_open(const char* name, const char* path, int flags, unsigned mode) {
  int fd = REAL(name, int (*)(const char*, int, ...))(path, flags, mode);
  note_open(path, flags, fd);
  return fd;
}
#define OPEN(name)                                  \
  int name(const char* path, int flags, ...) {      \
    va_list rest;                                   \
    va_start(rest, flags);                          \
    unsigned mode = va_arg(rest, unsigned);         \
    va_end(rest);                                   \
    return do_open(#name, path, flags, mode);       \
  }
OPEN(open)
OPEN(open64)
static FILE* do_fopen(const char* name, const char* path, const char* mode) {
  FILE* file = REAL(name, FILE * (*)(const char*, const char*))(path, mode);
  if (file && mode[0] != 'r') note_open(path, O_WRONLY | (mode[0] == 'w' ? O_TRUNC : 0), fileno(file));
  return file;
}
FILE* fopen(const char* path, const char* mode) { return do_fopen("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return do_fopen("fopen64", path, mode); }

ssize_t write(int fd, const void* data, size_t n) {
  char path[4096];
  int ours = path_of(fd, path);
  if (ours && fails()) return errno = EIO, -1;
  ssize_t put = syscall(SYS_write, fd, data, n);
  if (ours && put > 0) note_data('w', fd, lseek(fd, 0, SEEK_CUR) - put, data, (size_t)put);
  return put;
}
ssize_t writev(int fd, const struct iovec* parts, int n) {
  char path[4096];
  if (!path_of(fd, path)) return syscall(SYS_writev, fd, parts, n);
  ssize_t all = 0;
  for (int i = 0; i < n; ++i) {
    ssize_t put = write(fd, parts[i].iov_base, parts[i].iov_len);
    if (put < 0) return all ? all : -1;
    all += put;
  }
  return all;
}
static ssize_t do_pwrite(const char* name, int fd, const void* data, size_t n, off_t at) {
  char path[4096];
  int ours = path_of(fd, path);
  if (ours && fails()) return errno = EIO, -1;
  if (ours) maybe_die();
  ssize_t put = REAL(name, ssize_t(*)(int, const void*, size_t, off_t))(fd, data, n, at);
  if (ours && put > 0) note_data('w', fd, at, data, (size_t)put);
  return put;
}
ssize_t pwrite(int fd, const void* data, size_t n, off_t at) { return do_pwrite("pwrite", fd, data, n, at); }
ssize_t pwrite64(int fd, const void* data, size_t n, off_t at) { return do_pwrite("pwrite64", fd, data, n, at); }

static int do_truncate(const char* name, int fd, off_t size) {
  char path[4096];
  int ours = path_of(fd, path);
  if (ours && fails()) return errno = EIO, -1;
  if (ours) maybe_die();
  int rc = REAL(name, int (*)(int, off_t))(fd, size);
  if (ours && rc == 0) note_data('t', fd, size, 0, 0);
  return rc;
}
int ftruncate(int fd, off_t size) { return do_truncate("ftruncate", fd, size); }
int ftruncate64(int fd, off_t size) { return do_truncate("ftruncate64", fd, size); }
int fallocate(int fd, int mode, off_t at, off_t n) {
  char path[4096];
  int rc = REAL("fallocate", int (*)(int, int, off_t, off_t))(fd, mode, at, n);
  if (rc == 0 && path_of(fd, path)) note_data('t', fd, lseek(fd, 0, SEEK_END), 0, 0), lseek(fd, 0, SEEK_SET);
  return rc;
}

static int do_sync(const char* name, int fd) {
  char path[4096];
  int ours = path_of(fd, path);
  if (ours && fails()) return errno = EIO, -1;
  int rc = REAL(name, int (*)(int))(fd);
  struct stat st;
  if (rc != 0 || fstat(fd, &st) != 0) return rc;
  if (S_ISDIR(st.st_mode)) {
    if (is_our_folder(path)) note('d', path, 0, 0, 0, 0);
  } else if (ours) {
    note_data('s', fd, 0, 0, 0);
  }
  return rc;
}
int fsync(int fd) { return do_sync("fsync", fd); }
int fdatasync(int fd) { return do_sync("fdatasync", fd); }

static int noted(int rc, char kind, const char* path, const char* more) {
  struct stat st = {0};
  if (rc != 0 || !is_ours(path)) return rc;
  if (kind == 'l') stat(path, &st);
  note(kind, path, st.st_ino, 0, more, strlen(more));
  return rc;
}
int unlink(const char* path) { return noted(REAL("unlink", int (*)(const char*))(path), 'u', path, ""); }
int rename(const char* from, const char* to) { return noted(REAL("rename", int (*)(const char*, const char*))(from, to), 'r', from, to); }
int symlink(const char* to, const char* path) { return noted(REAL("symlink", int (*)(const char*, const char*))(to, path), 'y', path, to); }
int mkdir(const char* path, mode_t mode) { return noted(REAL("mkdir", int (*)(const char*, mode_t))(path, mode), 'm', path, ""); }
int linkat(int from_folder, const char* from, int folder, const char* path, int flags) {
  return noted(REAL("linkat", int (*)(int, const char*, int, const char*, int))(from_folder, from, folder, path, flags), 'l', path, "");
}
