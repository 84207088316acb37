/* A box at rest: its payload stops where it is, and goes on from there.
 *
 * Guarantees: when freezing succeeds no process of the payload runs, nor was one born that is not frozen with it; PID 1 and
 * its branches are left out, so that they still see their leashes end, and files can be seen to. With cgroup2 (pure, or
 * mounted beside v1) what is frozen can be killed.
 * Does not: let v1's own freezer be killed. Its cells must thaw first; the sweep of the next tilt-host does that, too. */
#define _GNU_SOURCE
#include "host.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PASSES = 64, MOST_LOOKS = 200, PIDS_CAP = 1 << 19 };       /* as many pids as a box may have, and more */
static struct {
    int dir;                    /* <hierarchy>/tiltyard */
    enum freezer_kind kind;
} freezer = {.dir = -1};

/* The first one stays: cgroup.c offers the best first. */
void freezer_use(int dir, enum freezer_kind kind) {
    if (freezer.dir < 0) {
        freezer.dir = dir;
        freezer.kind = kind;
    }
}

static void name(char *into, size_t size, uint32_t cell, const char *file) {
    snprintf(into, size, "c%u%s%s", cell, freezer.kind == FREEZER_NESTED ? "/frozen" : "", file);
}

static int order(uint32_t cell, bool freeze) {
    char path[96];
    if (freezer.kind == FREEZER_V1)
        return name(path, sizeof path, cell, "/freezer.state"), write_at(freezer.dir, path, freeze ? "FROZEN" : "THAWED");
    return name(path, sizeof path, cell, "/cgroup.freeze"), write_at(freezer.dir, path, freeze ? "1" : "0");
}

static bool is_frozen(uint32_t cell) {
    char path[96], text[256];
    name(path, sizeof path, cell, freezer.kind == FREEZER_V1 ? "/freezer.state" : "/cgroup.events");
    return read_at(freezer.dir, path, text, sizeof text) > 0 && strstr(text, freezer.kind == FREEZER_V1 ? "FROZEN" : "frozen 1");
}

static bool runs_as(const char *pid, uid_t uid) {
    char path[64], text[2048];
    snprintf(path, sizeof path, "%s/status", pid);
    const char *line = read_at(proc_dir, path, text, sizeof text) > 0 ? strstr(text, "\nUid:") : NULL;
    return line && strtoul(line + strlen("\nUid:"), NULL, 10) == uid;
}

/* Moves what runs as the payload; how many processes were moved, or had been. */
static int move_in(uint32_t cell, uid_t payload) {
    static char pids[PIDS_CAP];
    char path[96], *rest = NULL;
    int moved = 0;
    name(path, sizeof path, cell, "/cgroup.procs");
    cgroup_processes(cell, pids, sizeof pids);
    for (char *pid = strtok_r(pids, "\n", &rest); pid; pid = strtok_r(NULL, "\n", &rest))
        if (runs_as(pid, payload) && !write_at(freezer.dir, path, pid))
            moved++;
    return moved;
}

/* What was moved is frozen, so it neither ends nor forks: when a pass finds as many as the one before (or, where those that were
 * moved are listed no more, none), nobody is left outside. */
static bool gather(uint32_t cell, uid_t payload) {
    int before = 0;
    for (int pass = 0; pass < MOST_PASSES; pass++) {
        int now = move_in(cell, payload);
        if (now == (freezer.kind == FREEZER_NESTED ? 0 : before))
            return true;
        before = now;
    }
    return false;
}

int freezer_freeze(uint32_t cell, uid_t payload) {
    const struct timespec pause = {.tv_nsec = 500000};
    char path[96];
    if (freezer.dir < 0)
        return ENOTSUP;
    name(path, sizeof path, cell, "");
    if (mkdirat(freezer.dir, path, 0755) && errno != EEXIST)
        return errno;
    int error = order(cell, true);
    if (!error && !gather(cell, payload))
        error = EBUSY;
    for (int looks = 0; !error && !is_frozen(cell); looks++)
        error = looks < MOST_LOOKS ? nanosleep(&pause, NULL) && errno != EINTR ? errno : 0 : EBUSY;
    if (error)
        freezer_thaw(cell);
    return error;
}

int freezer_thaw(uint32_t cell) {
    return freezer.dir < 0 ? ENOTSUP : order(cell, false);
}

/* After SIGKILL: v1 lets what is frozen die only once it has thawed. */
void freezer_let_die(uint32_t cell) {
    if (freezer.kind == FREEZER_V1)
        (void)freezer_thaw(cell);
}

/* What a cell's rest has left; one that never rested has left nothing. */
int freezer_remove(uint32_t cell) {
    char path[96];
    if (freezer.dir < 0)
        return 0;
    name(path, sizeof path, cell, "");
    if (faccessat(freezer.dir, path, F_OK, 0))
        return 0;
    (void)order(cell, false);
    return cgroup_remove_folder(freezer.dir, path);
}
