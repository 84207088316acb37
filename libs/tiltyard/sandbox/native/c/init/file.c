/* Files of the box, touched as the payload's uid, never through a symlink, never outside /box and /tmp.
 * Does not: make what the payload may not make; the kernel judges each call by the payload's identity. */
#define _GNU_SOURCE
#include "init.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int roots[2];

int file_open_roots(void) {
    roots[0] = open("/box", O_PATH | O_DIRECTORY | O_CLOEXEC);
    roots[1] = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return roots[0] < 0 || roots[1] < 0 ? errno : 0;
}

/* gVisor has no identity for files alone: there the effective one changes, and comes back from the real one. */
static void become(uid_t id) {
    setfsgid(id);
    setfsuid(id);
    if ((uid_t)setfsuid((uid_t)-1) == id)
        return;
    if (id)
        (void)!setresgid((gid_t)-1, id, (gid_t)-1);
    (void)!setresuid((uid_t)-1, id, (uid_t)-1);
    if (!id)
        (void)!setresgid((gid_t)-1, id, (gid_t)-1);
}

/* Where the kernel has no openat2 (gVisor): one component after another, each by the descriptor of the last, none a link. */
static int walk_beneath(int root, const char *path, uint64_t flags, uint64_t mode) {
    char part[NAME_MAX + 1];
    int here = dup(root);
    while (here >= 0) {
        const char *stop = strchrnul(path, '/');
        size_t length = (size_t)(stop - path);
        bool last = !*stop;
        if (length > NAME_MAX || (length == 2 && !memcmp(path, "..", 2))) {
            close(here);
            errno = length > NAME_MAX ? ENAMETOOLONG : EXDEV;
            return -1;
        }
        memcpy(part, length ? path : ".", length + !length);
        part[length + !length] = 0;
        uint64_t how = (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC;
        int next = openat(here, part, (int)how, (mode_t)mode), error = errno;
        close(here);
        errno = error;
        if (last || next < 0)
            return next;
        here = next;
        path = stop + 1;
    }
    return -1;
}

static int open_beneath(int root, const char *path, uint64_t flags, uint64_t mode) {
    struct open_how how = {
        .flags = flags | O_CLOEXEC,
        .mode = mode,
        .resolve = (WITHOUT(BENEATH) ? 0 : RESOLVE_BENEATH) | (WITHOUT(LINKS) ? 0 : RESOLVE_NO_SYMLINKS) | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    return fd < 0 && errno == ENOSYS ? walk_beneath(root, path, flags, mode) : fd;
}

/* Makes every missing folder above `path`. */
static int make_parents(int root, const char *path) {
    char part[4096 + 1];
    if (strlen(path) > 4096)
        return ENAMETOOLONG;
    int here = dup(root);
    for (const char *slash; here >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        size_t length = (size_t)(slash - path);
        if (!length)
            continue;
        memcpy(part, path, length);
        part[length] = 0;
        if (mkdirat(here, part, 0755) && errno != EEXIST)
            break;
        int next = open_beneath(here, part, O_PATH | O_DIRECTORY, 0);
        int error = errno;
        close(here);
        if ((here = next) < 0)
            return error;
        errno = 0;
    }
    int error = here < 0 || strchr(path, '/') ? errno : 0;
    if (here >= 0)
        close(here);
    return error;
}

static int write_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t done = write(fd, data, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return errno;
        data += done;
        size -= (size_t)done;
    }
    return 0;
}

static int write_as_payload(const struct tilt_file *how, const char *path, const char *data) {
    uint64_t flags = O_WRONLY | O_CREAT | O_NONBLOCK | (how->append ? O_APPEND : O_TRUNC);
    int fd = open_beneath(roots[how->root], path, flags, how->mode & 0777), error;
    if (fd < 0 && errno == ENOENT) {
        if ((error = make_parents(roots[how->root], path)))
            return error;
        fd = open_beneath(roots[how->root], path, flags, how->mode & 0777);
    }
    if (fd < 0)
        return errno;
    struct stat found;
    error = fstat(fd, &found) ? errno : S_ISREG(found.st_mode) ? write_all(fd, data, how->data_size) : EINVAL;
    close(fd);
    return error;
}

int file_write(const struct tilt_file *how, const char *path, const char *data) {
    become(PAYLOAD_ID);
    int error = write_as_payload(how, path, data);
    become(0);
    return error;
}

static int read_as_payload(const struct tilt_read *how, const char *path, char *into, size_t *got, uint64_t *size) {
    int fd = open_beneath(roots[how->root], path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0), error = 0;
    if (fd < 0)
        return errno;
    struct stat found;
    if (fstat(fd, &found))
        error = errno;
    else if (!S_ISREG(found.st_mode))
        error = S_ISDIR(found.st_mode) ? EISDIR : EINVAL;
    else {
        *size = (uint64_t)found.st_size;
        ssize_t done = pread(fd, into, how->size, (off_t)how->offset);
        error = done < 0 ? errno : 0;
        *got = done < 0 ? 0 : (size_t)done;
    }
    close(fd);
    return error;
}

int file_read(const struct tilt_read *how, const char *path, char *into, size_t *got, uint64_t *size) {
    become(PAYLOAD_ID);
    int error = read_as_payload(how, path, into, got, size);
    become(0);
    return error;
}

static size_t put_entry(char *into, const struct stat *found, const char *name, size_t length) {
    const struct tilt_entry entry = {
        .size = (uint64_t)found->st_size, .mode = found->st_mode, .name_size = (uint32_t)length,
        .mtime_ns = (int64_t)found->st_mtim.tv_sec * 1000000000 + found->st_mtim.tv_nsec,
    };
    memcpy(into, &entry, sizeof entry);
    memcpy(into + sizeof entry, name, length);
    return sizeof entry + length;
}

/* One entry a name, as many as fit; `next` tells where to go on, 0 at the end. */
static int list_as_payload(const struct tilt_read *how, const char *path, char *into, size_t *got, uint64_t *next) {
    if (how->size < sizeof(struct tilt_entry) + NAME_MAX)
        return EINVAL;                  /* not even one entry would fit */
    int fd = open_beneath(roots[how->root], path, O_RDONLY | O_DIRECTORY, 0);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder)
        return errno;
    if (how->offset)
        seekdir(folder, (long)how->offset);
    *next = 0;
    for (struct dirent *each; errno = 0, (each = readdir(folder));) {
        struct stat found;
        size_t length = strlen(each->d_name);
        if (sizeof(struct tilt_entry) + length > how->size - *got)
            break;
        *next = (uint64_t)telldir(folder);
        if (!strcmp(each->d_name, ".") || !strcmp(each->d_name, "..") || fstatat(dirfd(folder), each->d_name, &found, AT_SYMLINK_NOFOLLOW))
            continue;
        *got += put_entry(into + *got, &found, each->d_name, length);
    }
    int error = errno;
    if (!readdir(folder))
        *next = 0;
    closedir(folder);
    return error;
}

int file_list(const struct tilt_read *how, const char *path, char *into, size_t *got, uint64_t *next) {
    become(PAYLOAD_ID);
    int error = list_as_payload(how, path, into, got, next);
    become(0);
    return error;
}

int file_stat(const struct tilt_read *how, const char *path, char *into, size_t *got) {
    struct stat found;
    become(PAYLOAD_ID);
    int fd = open_beneath(roots[how->root], path, O_PATH | O_NOFOLLOW, 0), error = fd < 0 || fstat(fd, &found) ? errno : 0;
    become(0);
    if (fd >= 0)
        close(fd);
    if (!error)
        *got = put_entry(into, &found, "", 0);
    return error;
}

static int mkdir_as_payload(const struct tilt_read *how, const char *path) {
    int error = make_parents(roots[how->root], path);
    if (error)
        return error;
    const char *slash = strrchr(path, '/');
    char above[4096 + 1] = ".";
    if (slash && slash != path) {
        memcpy(above, path, (size_t)(slash - path));
        above[slash - path] = 0;
    }
    int fd = open_beneath(roots[how->root], above, O_PATH | O_DIRECTORY, 0);
    error = fd < 0 || (mkdirat(fd, slash ? slash + 1 : path, how->size & 0777) && errno != EEXIST) ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (error)
        return error;
    if ((fd = open_beneath(roots[how->root], path, O_PATH | O_DIRECTORY, 0)) < 0)
        return errno;                   /* something else had the name */
    close(fd);
    return 0;
}

int file_mkdir(const struct tilt_read *how, const char *path) {
    become(PAYLOAD_ID);
    int error = mkdir_as_payload(how, path);
    become(0);
    return error;
}
