/* Preloaded: fsync and fdatasync fail with EIO for as long as the file named by FSYNC_FAILS exists. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>

static int fails(void) {
    const char *name = getenv("FSYNC_FAILS");
    return name != NULL && access(name, F_OK) == 0;
}

int fsync(int fd) {
    if (fails()) { errno = EIO; return -1; }
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    if (fails()) { errno = EIO; return -1; }
    return (int)syscall(SYS_fdatasync, fd);
}
