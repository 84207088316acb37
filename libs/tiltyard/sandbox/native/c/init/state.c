/* What the box holds now: figures, and everything that a box which nobody used would show in the same way. */
#define _GNU_SOURCE
#include "init.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* One file system in a native box, three in a container. */
bool disk_full(void) {
    static const char *const places[] = {"/box", "/tmp", "/dev/shm"};
    struct statvfs disk;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (!statvfs(places[i], &disk) && (disk.f_bavail * disk.f_bsize < 64 << 10 || (disk.f_files && !disk.f_ffree)))
            return true;
    return false;
}

static uint32_t processes(void) {
    uint32_t found = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *each; proc && (each = readdir(proc));)
        found += each->d_name[0] >= '1' && each->d_name[0] <= '9';
    if (proc)
        closedir(proc);
    return found;
}

void state_stats(struct tilt_stats *stats) {
    struct statvfs disk = {0};
    (void)statvfs("/box", &disk);
    *stats = (struct tilt_stats){
        .cpu_ns = meter_cpu_ns(), .throttled_ns = meter_throttled_ns(), .memory = meter_memory_bytes(), .peak = meter_peak_bytes(),
        .disk_used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize, .disk = disk.f_blocks * disk.f_frsize,
        .inodes_used = disk.f_files - disk.f_ffree, .inodes = disk.f_files,
        .pids = processes(), .oom_kills = (uint32_t)meter_oom_kills(), .pids_hits = (uint32_t)meter_pids_hits(),
        .branches = tree_branches,
    };
}

/* Counters of sockets instead of /proc/net/tcp: that walks a table of the whole host for each reader, for milliseconds. */
static const char *const texts[] = {
    "/proc/self/mountinfo", "/proc/net/sockstat", "/proc/net/sockstat6", "/proc/net/unix",
    "/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem", "/proc/sys/kernel/hostname", NULL,
};
static const char *const folders[] = {"/box", "/tmp", "/dev/shm", "/proc", NULL};

static size_t add(char *into, size_t size, size_t room, const char *text, size_t length) {
    if (length > room - size)
        length = room - size;
    memcpy(into + size, text, length);
    return size + length;
}

static size_t add_line(char *into, size_t size, size_t room, const char *mark, const char *text) {
    size = add(into, size, room, mark, strlen(mark));
    size = add(into, size, room, text, strlen(text));
    return add(into, size, room, "\n", 1);
}

static size_t add_file(char *into, size_t size, size_t room, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;
    size = add_line(into, size, room, "= ", path);
    while (fd >= 0 && size < room && (got = read(fd, into + size, room - size)) > 0)
        size += (size_t)got;
    if (fd >= 0)
        close(fd);
    return size;
}

/* Names in a folder; of /proc only the processes. */
static size_t add_folder(char *into, size_t size, size_t room, const char *path) {
    DIR *folder = opendir(path);
    bool numbers = !strcmp(path, "/proc");
    size = add_line(into, size, room, "= ", path);
    for (struct dirent *each; folder && (each = readdir(folder));)
        if (numbers ? each->d_name[0] >= '1' && each->d_name[0] <= '9' : each->d_name[0] != '.' || strlen(each->d_name) > 2)
            size = add_line(into, size, room, "", each->d_name);
    if (folder)
        closedir(folder);
    return size;
}

/* Text: a line `= PATH` before each part; cut at `room`. */
size_t state_survey(char *into, size_t room) {
    size_t size = 0;
    for (const char *const *path = texts; *path; path++)
        size = add_file(into, size, room, *path);
    for (const char *const *path = folders; *path; path++)
        size = add_folder(into, size, room, *path);
    return size;
}
