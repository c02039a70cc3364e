/* A disk that is full, read-only, slow or hung for a while: preloaded into every process of a chaos test (chaos_disk.py).

   A state file that all of them map says which folders are ill. On a full disk files can be made, renamed and cut, but
   a write ends half-way or fails with ENOSPC; on a read-only one every change fails with EROFS, and a write to a file
   that is open already with EIO, as after a disk's error. On a slow one a write takes 20 ms and an fsync 0.3 s, as on a
   busy file server; on a hung one writes go on into memory, and an fsync ends when the disk is well again; on a stalled
   one writes do not even go there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 8
#define LONG 1024 /* of a path; a signal's handler may be on a small stack of its own */
enum { WELL, FULL, READ_ONLY, SLOW, HUNG, STALLED };
typedef struct {
    volatile int64_t mode;
    char path[504];
} slot;

static slot *slots;
static unsigned writes;

__attribute__((constructor)) static void start(void) {
    const char *name = getenv("CHAOS_DISK");
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, SLOTS * sizeof(slot), PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) slots = map;
    close(fd);
}

static int any(void) {
    if (!slots) return 0;
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].mode) return 1;
    return 0;
}

static int64_t mode_of(const char *path) {
    char whole[2 * LONG];
    if (!any() || !path) return WELL;
    if (path[0] != '/') {
        char here[LONG];
        if (!getcwd(here, sizeof here)) return WELL;
        snprintf(whole, sizeof whole, "%s/%s", here, path);
        path = whole;
    }
    for (int i = 0; i < SLOTS; i++) {
        size_t n = strlen(slots[i].path);
        if (slots[i].mode && n && !strncmp(path, slots[i].path, n) && (path[n] == '/' || !path[n])) return slots[i].mode;
    }
    return WELL;
}

static int64_t mode_of_fd(int fd) {
    char link[64], path[LONG];
    if (!any()) return WELL;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = before;
    if (n < 0) return WELL;
    path[n] = 0;
    return mode_of(path);
}

static int refuse(int code) {
    errno = code;
    return -1;
}

#define REAL(name) ({ static typeof(&name) real; if (!real) real = (typeof(&name))dlsym(RTLD_NEXT, #name); real; })
#define CHANGES(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & (O_CREAT | O_TRUNC)))
#define OPEN(name)                                                                   \
    int name(const char *path, int flags, ...) {                                     \
        va_list more;                                                                \
        va_start(more, flags);                                                       \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0;  \
        va_end(more);                                                                \
        if (CHANGES(flags) && mode_of(path) == READ_ONLY) return refuse(EROFS);      \
        return REAL(name)(path, flags, mode);                                        \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                 \
    int name(int folder, const char *path, int flags, ...) {                         \
        va_list more;                                                                \
        va_start(more, flags);                                                       \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0;  \
        va_end(more);                                                                \
        if (CHANGES(flags) && mode_of(path) == READ_ONLY) return refuse(EROFS);      \
        return REAL(name)(folder, path, flags, mode);                                \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                  \
    FILE *name(const char *path, const char *mode) {                                 \
        if (strpbrk(mode, "wa+") && mode_of(path) == READ_ONLY) {                    \
            errno = EROFS;                                                           \
            return NULL;                                                             \
        }                                                                            \
        return REAL(name)(path, mode);                                               \
    }
FOPEN(fopen)
FOPEN(fopen64)

static void doze(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* Returns how much of a write the disk takes, -1 for none. */
static ssize_t taken(int fd, size_t size) {
    int64_t mode = mode_of_fd(fd);
    if (mode == READ_ONLY) return refuse(EIO);
    if (mode == SLOW) doze(20);
    while (mode_of_fd(fd) == STALLED) doze(5);
    if (mode != FULL) return (ssize_t)size;
    if (size > 1 && __sync_fetch_and_add(&writes, 1) % 2 == 0) return (ssize_t)(size / 2);
    return refuse(ENOSPC);
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t n = size ? taken(fd, size) : 0;
    return n < 0 ? n : REAL(write)(fd, data, (size_t)n);
}

#define PWRITE(name, offset_t)                                                       \
    ssize_t name(int fd, const void *data, size_t size, offset_t at) {               \
        ssize_t n = size ? taken(fd, size) : 0;                                      \
        return n < 0 ? n : REAL(name)(fd, data, (size_t)n, at);                      \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int count) {
    int64_t mode = mode_of_fd(fd);
    if (mode == FULL || mode == READ_ONLY) return refuse(mode == FULL ? ENOSPC : EIO);
    return REAL(writev)(fd, parts, count);
}

#define SYNC(name)                                                                   \
    int name(int fd) {                                                               \
        if (mode_of_fd(fd) == SLOW) doze(300);                                       \
        while (mode_of_fd(fd) >= HUNG) doze(5);                                      \
        return mode_of_fd(fd) == READ_ONLY ? refuse(EIO) : REAL(name)(fd);           \
    }
SYNC(fsync)
SYNC(fdatasync)
int ftruncate(int fd, off_t size) { return mode_of_fd(fd) == READ_ONLY ? refuse(EIO) : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return mode_of_fd(fd) == READ_ONLY ? refuse(EIO) : REAL(ftruncate64)(fd, size); }
int unlink(const char *path) { return mode_of(path) == READ_ONLY ? refuse(EROFS) : REAL(unlink)(path); }
int rename(const char *from, const char *to) {
    return mode_of(to) == READ_ONLY || mode_of(from) == READ_ONLY ? refuse(EROFS) : REAL(rename)(from, to);
}
int mkdir(const char *path, mode_t mode) {
    int64_t ill = mode_of(path);
    struct stat there;
    if ((ill == FULL || ill == READ_ONLY) && stat(path, &there)) return refuse(ill == FULL ? ENOSPC : EROFS);
    return REAL(mkdir)(path, mode);
}
