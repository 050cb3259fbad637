/* Records what a process does to the files below one directory, with the data, in one order.
 *
 * Loaded with LD_PRELOAD. STATEWARD_RECORD_ROOT names the directory, STATEWARD_RECORD_LOG the log, which lies elsewhere
 * and is new for each process. A lock is held from before each call until it is written down: the log's order is the
 * order in which things happened, and who has an answer finds in the log all that led to it. Calls that fail change
 * nothing and are not recorded. A record is a `head`, two paths and the data; tests/soak/recording.py reads it.
 *
 * Not seen: stores to a mapping (a writable one is recorded as such), io_uring, direct system calls, fopen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, ALLOCATE, SYNC, MKDIR, LINK, UNLINK, RENAME, RMDIR, MAP };
enum { FILES = 65536, IS_DSYNC = 1 };

struct head {
    uint32_t magic, kind, flags, path_bytes, other_bytes, zero;
    uint64_t file, offset, length, data_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_bytes;
static int log_fd = -1;
static unsigned char watched[FILES]; /* 1 = below the root, 2 = and every write is synced */

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

__attribute__((constructor)) static void begin(void) {
    const char *directory = getenv("STATEWARD_RECORD_ROOT"), *path = getenv("STATEWARD_RECORD_LOG");
    if (!directory || !path || !realpath(directory, root)) return;
    root_bytes = strlen(root);
    log_fd = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* The path below the root ("" = the root), NULL for any other. */
static const char *below(int directory, const char *path, char *space) {
    if (log_fd < 0 || !path) return NULL;
    char whole[PATH_MAX], parent[PATH_MAX];
    if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else if (directory == AT_FDCWD) {
        if (!getcwd(parent, sizeof parent)) return NULL;
        if (snprintf(whole, sizeof whole, "%s/%s", parent, path) >= (int)sizeof whole) return NULL;
    } else {
        char link_path[64];
        snprintf(link_path, sizeof link_path, "/proc/self/fd/%d", directory);
        ssize_t count = readlink(link_path, parent, sizeof parent - 1);
        if (count < 0) return NULL;
        parent[count] = 0;
        if (snprintf(whole, sizeof whole, "%s/%s", parent, path) >= (int)sizeof whole) return NULL;
    }
    if (strncmp(whole, root, root_bytes) || (whole[root_bytes] && whole[root_bytes] != '/')) return NULL;
    const char *rest = whole + root_bytes;
    while (*rest == '/') rest++;
    snprintf(space, PATH_MAX, "%s", rest);
    size_t end = strlen(space);
    while (end && space[end - 1] == '/') space[--end] = 0;
    return space;
}

static void put_all(const struct iovec *parts, int count) {
    for (int at = 0; at < count; at++) {
        const char *from = parts[at].iov_base;
        size_t left = parts[at].iov_len;
        while (left) {
            ssize_t done = REAL(write)(log_fd, from, left);
            if (done <= 0) abort(); /* a log with a gap would prove nothing */
            from += done;
            left -= done;
        }
    }
}

static void record(int kind, int flags, uint64_t file, uint64_t offset, uint64_t length, const char *path,
                   const char *other, const struct iovec *data, int data_count, size_t data_bytes) {
    int saved = errno;
    struct head head = {0x53574c47, kind, flags, path ? strlen(path) : 0, other ? strlen(other) : 0, 0,
                        file, offset, length, data_bytes};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, head.path_bytes}, {(void *)other, head.other_bytes}};
    put_all(parts, 3);
    for (int at = 0; at < data_count && data_bytes; at++) {
        struct iovec part = data[at];
        if (part.iov_len > data_bytes) part.iov_len = data_bytes;
        put_all(&part, 1);
        data_bytes -= part.iov_len;
    }
    errno = saved;
}

static uint64_t number_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

static int is_watched(int fd) { return log_fd >= 0 && fd >= 0 && fd < FILES && watched[fd]; }
static int dsync_of(int fd) { return watched[fd] == 2 ? IS_DSYNC : 0; }

static int open_watched(int directory, const char *path, int flags, mode_t mode) {
    char space[PATH_MAX];
    const char *rest = below(directory, path, space);
    if (!rest) return REAL(openat)(directory, path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat before;
    int was_there = fstatat(directory, path, &before, 0) == 0;
    int fd = REAL(openat)(directory, path, flags, mode);
    if (fd >= 0 && fd < FILES) {
        watched[fd] = flags & O_DSYNC ? 2 : 1; /* O_SYNC holds the bits of O_DSYNC */
        if (!was_there) record(CREATE, 0, number_of(fd), 0, 0, rest, NULL, NULL, 0, 0);
        else if (flags & O_TRUNC) record(TRUNCATE, 0, number_of(fd), 0, 0, NULL, NULL, NULL, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags, mode)                                        \
    mode_t mode = 0;                                             \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                       \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode = va_arg(rest, unsigned);                           \
        va_end(rest);                                            \
    }
int open(const char *path, int flags, ...) { MODE(flags, mode) return open_watched(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, mode) return open_watched(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) {
    MODE(flags, mode)
    if (!root_bytes || log_fd < 0) return REAL(openat64)(at, path, flags, mode);
    return open_watched(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) { MODE(flags, mode) return open_watched(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_watched(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd) {
    if (fd >= 0 && fd < FILES) watched[fd] = 0;
    return REAL(close)(fd);
}

static void wrote(int fd, off_t offset, const struct iovec *parts, int count, ssize_t done) {
    if (done > 0) record(WRITE, dsync_of(fd), number_of(fd), offset, done, NULL, NULL, parts, count, done);
}
#define AROUND(type, result, call, after)  \
    pthread_mutex_lock(&lock);             \
    type result = call;                    \
    after;                                 \
    pthread_mutex_unlock(&lock);           \
    return result

ssize_t write(int fd, const void *data, size_t size) {
    if (!is_watched(fd)) return REAL(write)(fd, data, size);
    struct iovec part = {(void *)data, size};
    AROUND(ssize_t, done, REAL(write)(fd, data, size), wrote(fd, lseek(fd, 0, SEEK_CUR) - done, &part, 1, done));
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!is_watched(fd)) return REAL(writev)(fd, parts, count);
    AROUND(ssize_t, done, REAL(writev)(fd, parts, count), wrote(fd, lseek(fd, 0, SEEK_CUR) - done, parts, count, done));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (!is_watched(fd)) return REAL(pwrite)(fd, data, size, at);
    struct iovec part = {(void *)data, size};
    AROUND(ssize_t, done, REAL(pwrite)(fd, data, size, at), wrote(fd, at, &part, 1, done));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    if (!is_watched(fd)) return REAL(pwritev)(fd, parts, count, at);
    AROUND(ssize_t, done, REAL(pwritev)(fd, parts, count, at), wrote(fd, at, parts, count, done));
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) { return pwritev(fd, parts, count, at); }

int ftruncate(int fd, off_t size) {
    if (!is_watched(fd)) return REAL(ftruncate)(fd, size);
    AROUND(int, done, REAL(ftruncate)(fd, size),
           if (!done) record(TRUNCATE, 0, number_of(fd), 0, size, NULL, NULL, NULL, 0, 0));
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
int posix_fallocate(int fd, off_t at, off_t size) {
    if (!is_watched(fd)) return REAL(posix_fallocate)(fd, at, size);
    AROUND(int, done, REAL(posix_fallocate)(fd, at, size),
           if (!done) record(ALLOCATE, 0, number_of(fd), at, size, NULL, NULL, NULL, 0, 0));
}
int posix_fallocate64(int fd, off_t at, off_t size) { return posix_fallocate(fd, at, size); }
int fallocate(int fd, int mode, off_t at, off_t size) {
    if (is_watched(fd) && mode) abort(); /* holes and shifted ranges are not modelled */
    if (!is_watched(fd)) return REAL(fallocate)(fd, mode, at, size);
    AROUND(int, done, REAL(fallocate)(fd, mode, at, size),
           if (!done) record(ALLOCATE, 0, number_of(fd), at, size, NULL, NULL, NULL, 0, 0));
}
int fallocate64(int fd, int mode, off_t at, off_t size) { return fallocate(fd, mode, at, size); }

#define SYNCED(fd) if (!done) record(SYNC, 0, number_of(fd), 0, 0, NULL, NULL, NULL, 0, 0)
int fsync(int fd) {
    if (!is_watched(fd)) return REAL(fsync)(fd);
    AROUND(int, done, REAL(fsync)(fd), SYNCED(fd));
}
int fdatasync(int fd) {
    if (!is_watched(fd)) return REAL(fdatasync)(fd);
    AROUND(int, done, REAL(fdatasync)(fd), SYNCED(fd));
}

void *mmap(void *where, size_t size, int protection, int flags, int fd, off_t at) {
    if (is_watched(fd) && (protection & PROT_WRITE) && (flags & MAP_SHARED)) {
        pthread_mutex_lock(&lock);
        record(MAP, 0, number_of(fd), at, size, NULL, NULL, NULL, 0, 0);
        pthread_mutex_unlock(&lock);
    }
    return REAL(mmap)(where, size, protection, flags, fd, at);
}
void *mmap64(void *where, size_t size, int protection, int flags, int fd, off_t at) {
    return mmap(where, size, protection, flags, fd, at);
}

static uint64_t number_at(int at, const char *path) {
    struct stat found;
    return fstatat(at, path, &found, AT_SYMLINK_NOFOLLOW) ? 0 : found.st_ino;
}
int mkdirat(int at, const char *path, mode_t mode) {
    char space[PATH_MAX];
    const char *rest = below(at, path, space);
    if (!rest) return REAL(mkdirat)(at, path, mode);
    AROUND(int, done, REAL(mkdirat)(at, path, mode),
           if (!done) record(MKDIR, 0, number_at(at, path), 0, 0, rest, NULL, NULL, 0, 0));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
int unlinkat(int at, const char *path, int flags) {
    char space[PATH_MAX];
    const char *rest = below(at, path, space);
    if (!rest) return REAL(unlinkat)(at, path, flags);
    AROUND(int, done, REAL(unlinkat)(at, path, flags),
           if (!done) record(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, 0, 0, rest, NULL, NULL, 0, 0));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int linkat(int at, const char *path, int to_at, const char *to, int flags) {
    char space[PATH_MAX], to_space[PATH_MAX];
    const char *from = below(at, path, space), *rest = below(to_at, to, to_space);
    if (!from || !rest) return REAL(linkat)(at, path, to_at, to, flags);
    AROUND(int, done, REAL(linkat)(at, path, to_at, to, flags),
           if (!done) record(LINK, 0, number_at(to_at, to), 0, 0, rest, NULL, NULL, 0, 0));
}
int link(const char *path, const char *to) { return linkat(AT_FDCWD, path, AT_FDCWD, to, 0); }
int renameat(int at, const char *path, int to_at, const char *to) {
    char space[PATH_MAX], to_space[PATH_MAX];
    const char *from = below(at, path, space), *rest = below(to_at, to, to_space);
    if (!from || !rest) return REAL(renameat)(at, path, to_at, to);
    AROUND(int, done, REAL(renameat)(at, path, to_at, to),
           if (!done) record(RENAME, 0, number_at(to_at, to), 0, 0, from, rest, NULL, 0, 0));
}
int rename(const char *path, const char *to) { return renameat(AT_FDCWD, path, AT_FDCWD, to); }
