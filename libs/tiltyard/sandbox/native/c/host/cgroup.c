/* The cgroup of a cell: memory (no swap), pids and cpu, with the counters that tilt-init reads.
 *
 * Guarantees: each controller is used where this host has it, v1 or v2, in a folder `tiltyard` of its hierarchy; a cell's
 * folders are named after its number, so that whoever holds the number may remove what a dead process left.
 * Does not: go on without one of them; tilt-host refuses to start then, and `tilt-host --doctor` says which it lacks. */
#define _GNU_SOURCE
#include "host.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum which { MEMORY, PIDS, CPU, CPUACCT, CONTROLLERS };
static const char *names[CONTROLLERS] = {"memory", "pids", "cpu", "cpuacct"};
static struct controller {
    int dir;                    /* <hierarchy>/tiltyard, -1 when the host has no such controller */
    bool v2;
} controllers[CONTROLLERS];
static int folders[CONTROLLERS], folder_count;     /* distinct hierarchies */

int write_at(int dir, const char *path, const char *text) {
    int fd = openat(dir, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = write(fd, text, strlen(text)) < 0 ? errno : 0;
    close(fd);
    return error;
}

ssize_t read_at(int dir, const char *path, char *into, size_t size) {
    int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t got = 0;
    ssize_t more;
    while ((more = read(fd, into + got, size - 1 - got)) > 0)
        got += (size_t)more;
    close(fd);
    into[got] = 0;
    return more < 0 ? -1 : (ssize_t)got;
}

static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || strchr(", ", at[-1])) && strchr(", \n", at[length]))
            return true;
    return false;
}

static int open_folder(const char *mount) {
    int top = open(mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top < 0)
        return -1;
    (void)mkdirat(top, "tiltyard", 0755);
    int dir = openat(top, "tiltyard", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    close(top);
    return dir;
}

static void remember(enum which which, int dir, bool v2) {
    controllers[which] = (struct controller){.dir = dir, .v2 = v2};
    for (int i = 0; i < folder_count; i++)
        if (folders[i] == dir)
            return;
    folders[folder_count++] = dir;
}

/* The best comes first: cgroup2 for all, then cgroup2 beside v1, then v1's own. */
static void find_freezer(const char *unified, const char *v1) {
    int dir;
    if (controllers[PIDS].dir >= 0 && controllers[PIDS].v2)
        freezer_use(controllers[PIDS].dir, FREEZER_NESTED);
    else if (*unified && (dir = open_folder(unified)) >= 0)
        freezer_use(dir, FREEZER_BESIDE);
    else if (*v1 && (dir = open_folder(v1)) >= 0)
        freezer_use(dir, FREEZER_V1);
}

/* A v1 hierarchy may carry several controllers (cpu,cpuacct): one folder serves them all. */
static void use_v1(const char *mount, const char *options) {
    int dir = -1;
    for (int i = 0; i < CONTROLLERS; i++)
        if (controllers[i].dir < 0 && has_word(options, names[i]) && (dir >= 0 || (dir = open_folder(mount)) >= 0))
            remember(i, dir, false);
}

/* Hands a controller down to tiltyard/, first moving the processes of the top folder aside where v2 demands it. */
static bool hand_down(int top, int dir, const char *name) {
    char order[32], pids[1 << 16], *rest = NULL;
    snprintf(order, sizeof order, "+%s", name);
    if (write_at(top, "cgroup.subtree_control", order) == EBUSY && !mkdirat(top, "tiltyard-rest", 0755)) {
        read_at(top, "cgroup.procs", pids, sizeof pids);
        for (char *pid = strtok_r(pids, "\n", &rest); pid; pid = strtok_r(NULL, "\n", &rest))
            write_at(top, "tiltyard-rest/cgroup.procs", pid);
        write_at(top, "cgroup.subtree_control", order);
    }
    return !write_at(dir, "cgroup.subtree_control", order);
}

static void use_v2(const char *mount) {
    char offered[512];
    int top = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC), dir = -1;
    if (top < 0 || read_at(top, "cgroup.controllers", offered, sizeof offered) < 0)
        return;
    for (int i = 0; i < CONTROLLERS; i++) {
        const char *name = i == CPUACCT ? "cpu" : names[i];     /* v2 counts cpu in cpu.stat */
        if (controllers[i].dir < 0 && has_word(offered, name) && (dir >= 0 || (dir = open_folder(mount)) >= 0) &&
            hand_down(top, dir, name))
            remember(i, dir, true);
    }
    close(top);
}

/* All boxes together weigh as much as eight processes beside them. Without this a whole pool would get the time of one, and
 * a machine that also trains would starve every command until its wall-clock limit. What one box may use, its own limits say. */
static void share_cpu(void) {
    if (controllers[CPU].dir >= 0)
        (void)write_at(controllers[CPU].dir, controllers[CPU].v2 ? "cpu.weight" : "cpu.shares", controllers[CPU].v2 ? "800" : "8192");
}

int cgroups_open(void) {
    char line[4096], mount[1024], type[64], options[1024], unified[1024] = "", frozen[1024] = "";
    FILE *info = fopen("/proc/self/mountinfo", "re");
    if (!info)
        return errno;
    for (int i = 0; i < CONTROLLERS; i++)
        controllers[i].dir = -1;
    for (int v2 = 0; v2 < 2; v2++, rewind(info))
        while (fgets(line, sizeof line, info)) {
            const char *tail = strstr(line, " - ");
            if (!tail || sscanf(line, "%*s %*s %*s %*s %1023s", mount) != 1 || sscanf(tail, " - %63s %*s %1023s", type, options) != 2)
                continue;
            if (!v2 && !strcmp(type, "cgroup"))
                use_v1(mount, options);
            if (v2 && !strcmp(type, "cgroup2")) {
                use_v2(mount);
                strcpy(unified, mount);
            }
            if (!strcmp(type, "cgroup") && has_word(options, "freezer"))
                strcpy(frozen, mount);
        }
    fclose(info);
    find_freezer(unified, frozen);
    share_cpu();
    return 0;
}

static int set(enum which which, uint32_t cell, const char *v1, const char *v2, uint64_t value) {
    char path[96], text[64];
    const struct controller *controller = &controllers[which];
    const char *file = controller->v2 ? v2 : v1;
    if (controller->dir < 0 || !file)
        return 0;
    snprintf(path, sizeof path, "c%u/%s", cell, file);
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return write_at(controller->dir, path, text);
}

static int set_limits(uint32_t cell, const struct limits *limits) {
    uint64_t memory = WITHOUT(MEMORY) ? UINT64_C(1) << 40 : limits->memory, pids = WITHOUT(PIDS) ? 100000 : limits->pids + 1;   /* and PID 1 */
    int error = set(MEMORY, cell, "memory.limit_in_bytes", "memory.max", memory);
    int swap = set(MEMORY, cell, "memory.memsw.limit_in_bytes", NULL, memory);
    if (swap && swap != ENOENT)             /* a kernel without swap accounting has no such file */
        error = error ? error : swap;
    (void)set(MEMORY, cell, NULL, "memory.swap.max", 0);
    error = error ? error : set(PIDS, cell, "pids.max", "pids.max", pids);
    (void)set(CPU, cell, "cpu.cfs_period_us", NULL, 100000);
    error = error ? error : set(CPU, cell, "cpu.cfs_quota_us", "cpu.max", (uint64_t)limits->cpu_milli * 100);
    return error;
}

int cgroup_make(uint32_t cell, const struct limits *limits) {
    char name[16];
    snprintf(name, sizeof name, "c%u", cell);
    for (int i = 0; i < folder_count; i++)
        if (mkdirat(folders[i], name, 0755) && errno != EEXIST)
            return errno;
    return set_limits(cell, limits);
}

int cgroup_remove_folder(int folder, const char *name) {
    const struct timespec pause = {.tv_nsec = 2000000};
    for (int tries = 0; tries < 500; tries++) {
        if (!unlinkat(folder, name, AT_REMOVEDIR) || errno == ENOENT)
            return 0;
        char path[64], pids[4096], *rest = NULL;
        snprintf(path, sizeof path, "%s/cgroup.procs", name);
        if (read_at(folder, path, pids, sizeof pids) > 0)
            for (char *pid = strtok_r(pids, "\n", &rest); pid; pid = strtok_r(NULL, "\n", &rest))
                kill(atoi(pid), SIGKILL);
        nanosleep(&pause, NULL);
    }
    return EBUSY;
}

/* Kills whoever is still in it, waits until they are gone and removes the folders. */
int cgroup_remove(uint32_t cell) {
    char name[16];
    int error = freezer_remove(cell);
    snprintf(name, sizeof name, "c%u", cell);
    for (int i = 0; i < folder_count; i++)
        error = cgroup_remove_folder(folders[i], name) ?: error;
    return error;
}

static ssize_t get(enum which which, uint32_t cell, const char *v1, const char *v2, char *into, size_t size) {
    char path[96];
    const struct controller *controller = &controllers[which];
    const char *file = controller->v2 ? v2 : v1;
    into[0] = 0;
    if (controller->dir < 0 || !file)
        return -1;
    snprintf(path, sizeof path, "c%u/%s", cell, file);
    return read_at(controller->dir, path, into, size);
}

/* A line for each, of those that are not nested deeper. */
void cgroup_processes(uint32_t cell, char *into, size_t size) {
    (void)get(PIDS, cell, "cgroup.procs", "cgroup.procs", into, size);
}

static uint64_t counted(const char *stat, const char *key) {
    size_t length = strlen(key);
    for (const char *line = stat; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (!strncmp(line, key, length) && line[length] == ' ')
            return strtoull(line + length + 1, NULL, 10);
    return 0;
}

/* Nobody in it, and next to no memory charged to it that could not be reclaimed. A file system that is being torn down holds
 * its pages a moment longer; the cache of files that the last box read may stay, since the kernel drops it on demand. */
bool cgroup_clean(uint32_t cell) {
    char text[8192];
    if (get(PIDS, cell, "pids.current", "pids.current", text, sizeof text) > 0 && strtoul(text, NULL, 10))
        return false;
    get(MEMORY, cell, "memory.usage_in_bytes", "memory.current", text, sizeof text);
    if (strtoull(text, NULL, 10) <= CLEAN_BYTES)
        return true;
    get(MEMORY, cell, "memory.stat", "memory.stat", text, sizeof text);
    return counted(text, controllers[MEMORY].v2 ? "anon" : "rss") + counted(text, "shmem") <= CLEAN_BYTES;
}

/* The caller, which has one thread, joins the cell. "0" means "me". A single thread that joins v1's `tasks` spares the kernel the
 * lock on all forks and exits of the machine, for which `cgroup.procs` waits milliseconds. */
int cgroup_enter(uint32_t cell) {
    char tasks[64], procs[64];
    snprintf(tasks, sizeof tasks, "c%u/tasks", cell);
    snprintf(procs, sizeof procs, "c%u/cgroup.procs", cell);
    for (int i = 0; i < folder_count; i++) {
        int error = write_at(folders[i], tasks, "0");
        if (error == ENOENT)                /* v2 */
            error = write_at(folders[i], procs, "0");
        if (error)
            return error;
    }
    return 0;
}

static int open_meter(enum which which, uint32_t cell, const char *v1, const char *v2, int flags) {
    char path[96];
    const struct controller *controller = &controllers[which];
    const char *file = controller->v2 ? v2 : v1;
    snprintf(path, sizeof path, "c%u/%s", cell, file);
    int fd = controller->dir < 0 ? -1 : openat(controller->dir, path, flags | O_CLOEXEC);
    if (fd < 0 && flags == O_RDWR && controller->dir >= 0)
        fd = openat(controller->dir, path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : open("/d/null", O_RDWR | O_CLOEXEC);
}

/* In the order of tilt-init's descriptors, from INIT_CPU on. */
void cgroup_meters(uint32_t cell, int meters[INIT_METERS]) {
    meters[0] = open_meter(CPUACCT, cell, "cpuacct.usage", "cpu.stat", O_RDONLY);
    meters[1] = open_meter(MEMORY, cell, "memory.max_usage_in_bytes", "memory.peak", O_RDWR);
    meters[2] = open_meter(MEMORY, cell, "memory.oom_control", "memory.events", O_RDONLY);
    meters[3] = open_meter(PIDS, cell, "pids.events", "pids.events", O_RDONLY);
    meters[4] = open_meter(CPU, cell, "cpu.stat", "cpu.stat", O_RDONLY);
    meters[5] = open_meter(MEMORY, cell, "memory.usage_in_bytes", "memory.current", O_RDONLY);
}

uint64_t cgroup_oom_kills(uint32_t cell) {
    char text[512];
    get(MEMORY, cell, "memory.oom_control", "memory.events", text, sizeof text);
    const char *found = strstr(text, "oom_kill ");
    return found ? strtoull(found + strlen("oom_kill "), NULL, 10) : 0;
}

/* The folders that a process joins a cell through; how many. */
int cgroup_folders(int *into) {
    memcpy(into, folders, (size_t)folder_count * sizeof *folders);
    return folder_count;
}

void cgroup_each(void (*visit)(uint32_t cell)) {
    for (int i = 0; i < folder_count; i++) {
        DIR *folder = fdopendir(openat(folders[i], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        for (struct dirent *entry; folder && (entry = readdir(folder));)
            if (entry->d_name[0] == 'c' && entry->d_name[1] >= '0' && entry->d_name[1] <= '9')
                visit((uint32_t)strtoul(entry->d_name + 1, NULL, 10));
        if (folder)
            closedir(folder);
    }
}

/* The first controller that this host lacks; NULL when it has all, so that every limit will hold. */
const char *cgroups_missing(void) {
    for (int i = 0; i < CONTROLLERS; i++)
        if (controllers[i].dir < 0)
            return names[i];
    return NULL;
}

/* One line a controller, for doctor(): "cgroup.memory v1". */
void cgroups_report(void) {
    for (int i = 0; i < CONTROLLERS; i++)
        printf("cgroup.%s %s\n", names[i], controllers[i].dir < 0 ? "none" : controllers[i].v2 ? "v2" : "v1");
}
