/* Preloaded into a run: makes a chosen call on a chosen file fail, or ends the process there, and moves the clock.

   FAULT_VICTIM  part of the command line of the processes that it is for
   FAULT_PATH    part of the path of the files that it is for
   FAULT_CALLS   calls that count, as in "write,fsync"; all of them if it is not set
   FAULT_AT      the number of the call, from 1 on; 0: each one
   FAULT_ACT     kill (before the call), after (behind it), torn (half a write, then kill), EIO, ENOSPC
   FAULT_WHILE   only while this file exists
   FAULT_MARK    this file is made when it happens; with FAULT_AT, it happens only while the file is not there: once
   FAULT_CLOCK   a file with seconds that are added to the time of day, while it exists */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *victim, *part, *calls, *act, *condition, *mark, *clock_file;
static long at, passed;
static int chosen;

__attribute__((constructor)) static void prepare(void) {
    char line[8192];
    victim = getenv("FAULT_VICTIM"), part = getenv("FAULT_PATH"), calls = getenv("FAULT_CALLS");
    act = getenv("FAULT_ACT"), condition = getenv("FAULT_WHILE"), mark = getenv("FAULT_MARK");
    clock_file = getenv("FAULT_CLOCK");
    at = getenv("FAULT_AT") ? atol(getenv("FAULT_AT")) : 0;
    if (act == NULL || part == NULL) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY, 0);
    long length = fd < 0 ? 0 : syscall(SYS_read, fd, line, sizeof line - 1);
    if (fd >= 0) syscall(SYS_close, fd);
    for (long index = 0; index < length; index++) if (line[index] == 0) line[index] = ' ';
    line[length > 0 ? length : 0] = 0;
    chosen = victim == NULL || strstr(line, victim) != NULL;
}

static void note(void) {
    if (mark != NULL) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, mark, O_CREAT | O_WRONLY, 0644);
        if (fd >= 0) syscall(SYS_close, fd);
    }
}

static void end(void) {
    note();
    syscall(SYS_kill, (int)syscall(SYS_getpid), SIGKILL);
}

/* Whether this call is the one; path is NULL for calls on a descriptor. */
static int due(const char *call, int fd, const char *path) {
    char link[64], target[4096];
    if (!chosen) return 0;
    if (calls != NULL && strstr(calls, call) == NULL) return 0;
    if (path == NULL) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        long length = syscall(SYS_readlinkat, AT_FDCWD, link, target, sizeof target - 1);
        if (length < 0) return 0;
        target[length] = 0, path = target;
    }
    if (strstr(path, part) == NULL) return 0;
    if (condition != NULL && syscall(SYS_faccessat, AT_FDCWD, condition, F_OK) != 0) return 0;
    if (at == 0) return 1;
    return __sync_add_and_fetch(&passed, 1) == at && (mark == NULL || syscall(SYS_faccessat, AT_FDCWD, mark, F_OK) != 0);
}

static int fails(void) {
    if (strcmp(act, "EIO") == 0) { note(); errno = EIO; return 1; }
    if (strcmp(act, "ENOSPC") == 0) { note(); errno = ENOSPC; return 1; }
    if (strcmp(act, "kill") == 0) end();
    return 0;
}

#define FAULTY(name, fd, path, ...)                              \
    int hit = due(name, fd, path);                               \
    if (hit && fails()) return -1;                               \
    long made = syscall(__VA_ARGS__);                            \
    if (hit && (!strcmp(act, "after") || !strcmp(act, "torn"))) end(); \
    return made

ssize_t write(int fd, const void *from, size_t size) {
    int hit = due("write", fd, NULL);
    if (hit && fails()) return -1;
    if (hit && !strcmp(act, "torn")) { syscall(SYS_write, fd, from, size / 2); end(); }
    ssize_t made = syscall(SYS_write, fd, from, size);
    if (hit && !strcmp(act, "after")) end();
    return made;
}

ssize_t pwrite64(int fd, const void *from, size_t size, off64_t where) {
    int hit = due("write", fd, NULL);
    if (hit && fails()) return -1;
    if (hit && !strcmp(act, "torn")) { syscall(SYS_pwrite64, fd, from, size / 2, where); end(); }
    ssize_t made = syscall(SYS_pwrite64, fd, from, size, where);
    if (hit && !strcmp(act, "after")) end();
    return made;
}

ssize_t pwrite(int fd, const void *from, size_t size, off_t where) { return pwrite64(fd, from, size, where); }
int fsync(int fd) { FAULTY("fsync", fd, NULL, SYS_fsync, fd); }
int fdatasync(int fd) { FAULTY("fsync", fd, NULL, SYS_fdatasync, fd); }
int ftruncate64(int fd, off64_t size) { FAULTY("truncate", fd, NULL, SYS_ftruncate, fd, size); }
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
int rename(const char *from, const char *to) { FAULTY("rename", -1, to, SYS_rename, from, to); }
int unlink(const char *path) { FAULTY("unlink", -1, path, SYS_unlink, path); }
int mkdir(const char *path, mode_t mode) { FAULTY("mkdir", -1, path, SYS_mkdir, path, mode); }
int link(const char *from, const char *to) { FAULTY("link", -1, to, SYS_link, from, to); }

static int opened(int folder, const char *path, int flags, mode_t mode) {
    if (!(flags & O_CREAT)) return (int)syscall(SYS_openat, folder, path, flags, mode);
    FAULTY("open", -1, path, SYS_openat, folder, path, flags, mode);
}

#define MODE(flags)                 \
    mode_t mode = 0;                \
    if (flags & O_CREAT) {          \
        va_list more;               \
        va_start(more, flags);      \
        mode = va_arg(more, mode_t); \
        va_end(more);               \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags | O_LARGEFILE, mode); }

static long offset(void) {
    char text[32];
    if (clock_file == NULL) return 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, clock_file, O_RDONLY, 0);
    if (fd < 0) return 0;
    long length = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    text[length > 0 ? length : 0] = 0;
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int made = (int)syscall(SYS_clock_gettime, clock, now);
    if (made == 0 && clock == CLOCK_REALTIME) now->tv_sec += offset();
    return made;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int made = (int)syscall(SYS_gettimeofday, now, zone);
    if (made == 0) now->tv_sec += offset();
    return made;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now != NULL) *now = found.tv_sec;
    return found.tv_sec;
}
