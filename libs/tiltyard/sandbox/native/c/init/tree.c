/* Whose a process is, when more than one command runs: PID 1 may grow branches, copies of itself that serve one command each.
 *
 * Guarantees: a branch adopts every orphan of its command (PR_SET_CHILD_SUBREAPER), so what a command started stays below its
 * branch however it detaches itself; a walk in the order of pids kills a parent before it looks at its later children.
 * Does not: kill in one step, as kill(-1) does. Without branches PID 1 uses that; with them a walk is repeated until it finds
 * nothing twice, and whoever runs away from it for a second is killed with everything else (job.c). */
#define _GNU_SOURCE
#include "init.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST_BRANCHES = 8, MOST_DEPTH = 4096 };

struct entry {
    pid_t pid, parent;
    uint64_t ticks;             /* its own time and that of the children that it has reaped */
};

bool tree_branch;
uint32_t tree_branches;

static pid_t branches[MOST_BRANCHES];
static uint64_t gone_ns, most_ns;       /* what dead branches used; what has been answered before */
static struct entry *table;
static size_t count, room;

static bool read_entry(const char *name, struct entry *entry) {
    char path[300], text[1024], *rest;
    unsigned long user, system, below_user, below_system;
    int parent;
    snprintf(path, sizeof path, "/proc/%s/stat", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    /* the name in brackets may hold anything: what follows its last bracket is numbers */
    if (!(rest = strrchr(text, ')')) || sscanf(rest + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %lu %lu", &parent, &user,
                                               &system, &below_user, &below_system) != 5)
        return false;
    *entry = (struct entry){atoi(name), parent, user + system + below_user + below_system};
    return true;
}

static bool make_room(void) {
    if (count < room)
        return true;
    struct entry *grown = realloc(table, (room + 256) * sizeof *grown);
    if (!grown)
        return false;
    table = grown;
    room += 256;
    return true;
}

/* Every process of the box, by pid; /proc lists them in that order. */
static void look(void) {
    DIR *proc = opendir("/proc");
    count = 0;
    for (struct dirent *each; proc && (each = readdir(proc));)
        if (each->d_name[0] >= '1' && each->d_name[0] <= '9' && make_room() && read_entry(each->d_name, &table[count]))
            count++;
    if (proc)
        closedir(proc);
}

static const struct entry *find(pid_t pid) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && table[low].pid == pid ? &table[low] : NULL;
}

static bool is_branch(pid_t pid) {
    for (uint32_t i = 0; i < tree_branches; i++)
        if (branches[i] == pid)
            return true;
    return false;
}

enum owner { OURS, ANOTHERS, UNKNOWN };

/* UNKNOWN: an ancestor died while we looked, so it belongs to whom the next look will show. */
static enum owner owner_of(pid_t pid) {
    const pid_t self = getpid();
    for (int depth = 0; depth < MOST_DEPTH; depth++) {
        if (pid == self)
            return OURS;
        if (is_branch(pid) || pid <= 1)
            return ANOTHERS;
        const struct entry *entry = find(pid);
        if (!entry)
            return UNKNOWN;
        pid = entry->parent;
    }
    return UNKNOWN;
}

int tree_grow(pid_t *pid) {
    if (tree_branch || tree_branches == MOST_BRANCHES)
        return EMFILE;
    if ((*pid = fork()) < 0)
        return errno;
    if (*pid) {
        branches[tree_branches++] = *pid;
        return 0;
    }
    tree_branch = true;
    tree_branches = 0;
    gone_ns = most_ns = 0;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) || prctl(PR_SET_NAME, "tilt-branch", 0, 0, 0))
        _exit(5);
    return 0;
}

bool tree_forget(pid_t pid, uint64_t cpu_ns) {
    for (uint32_t i = 0; i < tree_branches; i++)
        if (branches[i] == pid) {
            branches[i] = branches[--tree_branches];
            gone_ns += cpu_ns;
            return true;
        }
    return false;
}

bool tree_kill(void) {
    if (WITHOUT(KILL))
        return false;
    if (!tree_branch && !tree_branches) {
        kill(-1, SIGKILL);
        return false;                   /* who is left, waitpid tells */
    }
    bool clear = true;
    look();
    for (size_t i = 0; i < count; i++) {
        if (table[i].pid == getpid())
            continue;
        enum owner owner = owner_of(table[i].pid);
        clear = clear && owner == ANOTHERS;
        if (owner == OURS)
            kill(table[i].pid, SIGKILL);
    }
    return clear;
}

uint64_t tree_cpu_ns(void) {
    if (!tree_branch && !tree_branches && !gone_ns)
        return 0;
    uint64_t ticks = 0, sum;
    look();
    for (size_t i = 0; i < count; i++) {
        bool ours = owner_of(table[i].pid) == OURS;
        if (tree_branch ? ours : !ours && table[i].pid != 1)
            ticks += table[i].ticks;
    }
    sum = gone_ns + ticks * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
    most_ns = sum > most_ns ? sum : most_ns;
    return most_ns;
}
