/* tilt-host: the privileged program. One process a pool: it keeps the asked number of boxes alive and hands each out.
 *
 * Guarantees: it takes a box's cell number, an image's digest and limits, never a path; it serves the one caller that
 * started it, or that tilt-door let in (SO_PEERCRED); when that caller dies, every box dies and nothing of them is left.
 * Does not: talk to a payload. tilt-init does, unprivileged. */
#define _GNU_SOURCE
#include "../signals.h"
#include "fleet.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CONTROL, STATUS, SIGNALS, SOURCES };
enum { MOST_UNSENT = 256 };
static int control, statuses, holds;
static bool pooled, full;               /* full: the control socket takes no more for now */
static int64_t pause_until;             /* after a failure, monotonic ms */

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Tells Python; `fd` >= 0 goes with it. False: the socket is full. */
static bool tell(struct tilt_event event, int fd) {
    char room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&event, sizeof event};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = room;
        message.msg_controllen = sizeof room;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    return sendmsg(control, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

static void lend_ready(void) {
    for (struct box *box; (box = fleet_next_ready());) {
        full = !tell((struct tilt_event){.op = TILT_BOX, .cell = box->cell.number, .life = box->life, .made_ns = box->made_ns}, box->socket);
        if (full)
            return;
        fleet_lent(box);
    }
}

static void note_failure(uint32_t cell, uint32_t life, int step, int error, int status) {
    fleet.failed++;
    pause_until = now_ms() + 50;
    tell((struct tilt_event){.op = TILT_FAILED, .cell = cell, .life = life, .step = step, .error = error, .status = status}, -1);
}

/* Boxes that Python has not taken yet hold a descriptor each, so there are never many. */
static bool wanted(void) {
    return pooled && fleet.alive < fleet.size && fleet.starting < fleet.starting_most && fleet.ready < MOST_UNSENT;
}

static void make_missing(void) {
    while (wanted() && now_ms() >= pause_until) {
        enum tilt_step step;
        int error = fleet_make(&step);
        if (error == RESTING)
            pause_until = now_ms() + 2;
        else if (error)
            note_failure(0, 0, step, error, 0);
        if (error)
            return;
    }
}

static bool bad_digest(const char *image) {
    for (int i = 0; i < TILT_DIGEST; i++)
        if (!((image[i] >= '0' && image[i] <= '9') || (image[i] >= 'a' && image[i] <= 'f')))
            return true;
    return false;
}

/* The image stays as long as this process does. */
static int hold_image(const char *image) {
    char name[TILT_DIGEST + 1];
    snprintf(name, sizeof name, "%.*s", TILT_DIGEST, image);
    int held = openat(holds, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    return held < 0 || flock(held, LOCK_SH) ? errno : 0;
}

static int open_pool(const struct tilt_pool *pool) {
    if (pooled || !pool->size || pool->size > MAX_CELLS / 2 || bad_digest(pool->image) || !pool->memory || !pool->disk || !pool->pids ||
        !pool->cpu_milli || !pool->nofile)
        return EINVAL;
    char path[TILT_DIGEST + 16];
    snprintf(path, sizeof path, "/m/i/%.*s/root", TILT_DIGEST, pool->image);
    int error = hold_image(pool->image);
    if (error)
        return error;
    if (access(path, X_OK))
        return errno;
    memcpy(fleet.recipe.image, pool->image, TILT_DIGEST);
    fleet.recipe.limits = (struct limits){
        .memory = pool->memory, .disk = pool->disk, .inodes = pool->inodes, .file_bytes = pool->file_bytes,
        .pids = pool->pids, .cpu_milli = pool->cpu_milli, .nofile = pool->nofile,
    };
    fleet.recipe.reuses = pool->reuses;
    fleet.recipe.zygote = warm_start(fleet.recipe.image);
    pooled = true;
    return fleet_open(pool);
}

static void count(void) {
    tell((struct tilt_event){.op = TILT_COUNTS, .alive = fleet.alive, .ready = fleet.ready, .created = fleet.created,
                             .destroyed = fleet.destroyed, .failed = fleet.failed}, -1);
}

/* Only what is lent has a payload. */
static void freeze(const struct tilt_freeze *asked) {
    struct box *box = fleet_box(asked->cell, asked->life);
    int error = box && box->state == BOX_LENT ? 0 : ESRCH;
    if (!error && asked->on) {
        box->rested = true;
        error = freezer_freeze(box->cell.number, cell_payload_uid(&box->cell));
    } else if (!error && box->rested)
        error = freezer_thaw(box->cell.number);
    tell((struct tilt_event){.op = TILT_FROZEN, .cell = asked->cell, .life = asked->life, .error = error}, -1);
}

static void handle(const void *request, size_t size) {
    uint32_t op = size >= sizeof op ? *(const uint32_t *)request : 0;
    int error = 0;
    if (op == TILT_POOL && size == sizeof(struct tilt_pool))
        error = open_pool(request);
    else if (op == TILT_KILL && size == sizeof(struct tilt_kill)) {
        const struct tilt_kill *order = request;
        struct box *box = fleet_box(order->cell, order->life);
        if (box) {
            box->retire = order->retire;
            fleet_kill(box);
        }
    } else if (op == TILT_FREEZE && size == sizeof(struct tilt_freeze))
        freeze(request);
    else if (op == TILT_STATS)
        count();
    else
        error = EBADMSG;
    if (error)
        tell((struct tilt_event){.op = TILT_REFUSED, .error = error}, -1);
}

/* False when the caller is gone. */
static bool hear_control(void) {
    char request[256] __attribute__((aligned(8)));
    for (;;) {
        ssize_t got = recv(control, request, sizeof request, MSG_DONTWAIT);
        if (got < 0)
            return errno == EAGAIN || errno == EINTR;
        if (!got)
            return false;
        handle(request, (size_t)got);
    }
}

static void hear_statuses(void) {
    struct tilt_status status[64];
    ssize_t got = read(statuses, status, sizeof status);
    for (ssize_t i = 0; i < got / (ssize_t)sizeof *status; i++) {
        struct box *box = fleet_box(status[i].cell, status[i].life);
        if (box && status[i].step == STEP_READY)
            fleet_ready(box);
        else if (box)
            note_failure(status[i].cell, status[i].life, (int)status[i].step, status[i].error, 0);
    }
}

static void bury(void) {
    struct box before;
    int status;
    for (struct box *box; (box = fleet_reap(&before, &status));) {
        bool asked = before.state == BOX_DYING || (WIFEXITED(status) && !WEXITSTATUS(status));
        uint32_t oom = (uint32_t)(cgroup_oom_kills(before.cell.number) - before.oom_before);
        if (before.state == BOX_STARTING && !(WIFEXITED(status) && WEXITSTATUS(status) == 1))   /* 1: it has said why */
            note_failure(before.cell.number, before.life, STEP_EXEC, 0, status);
        else if (before.state == BOX_LENT && !asked)
            tell((struct tilt_event){.op = TILT_LOST, .cell = before.cell.number, .life = before.life, .status = status, .oom = oom}, -1);
    }
}

static int wait_ms(void) {
    int64_t left = pause_until - now_ms();
    return !wanted() ? -1 : left > 0 ? (int)left : 0;
}

static void serve(int signals) {
    for (;;) {
        struct pollfd sources[SOURCES] = {
            [CONTROL] = {.fd = control, .events = (short)(POLLIN | (full ? POLLOUT : 0))},
            [STATUS] = {.fd = statuses, .events = POLLIN},
            [SIGNALS] = {.fd = signals, .events = POLLIN},
        };
        if (poll(sources, SOURCES, wait_ms()) < 0 && errno != EINTR)
            return;
        struct signalfd_siginfo seen;
        if (sources[STATUS].revents)
            hear_statuses();
        while (sources[SIGNALS].revents && read(signals, &seen, sizeof seen) == sizeof seen)
            if (seen.ssi_signo != SIGCHLD)
                return;
        if (sources[SIGNALS].revents)
            bury();
        if (sources[CONTROL].revents && !hear_control())
            return;
        lend_ready();
        make_missing();
    }
}

/* The folder that this program lies in, and the others with it. */
static int open_programs(void) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return -1;
    path[length] = 0;
    *strrchr(path, '/') = 0;
    return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Ends, having told the caller why. */
static void give_up(const char *what, int error) {
    char reason[TILT_REASON] = "";
    snprintf(reason, sizeof reason, "%s: %s", what, strerror(error));
    if (!control || send(control, reason, sizeof reason, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        fprintf(stderr, "tilt-host: %s\n", reason);
    exit(1);
}

static void check_caller(uid_t wanted) {
    struct ucred caller;
    socklen_t size = sizeof caller;
    if (getsockopt(control, SOL_SOCKET, SO_PEERCRED, &caller, &size))
        give_up("control socket", errno);
    if (caller.uid && caller.uid != wanted)
        give_up("the caller is neither root nor whom it is meant for", EPERM);
}

/* Where locks lie that keep images from being pruned: opened while the store can still be written to. */
static int open_holds(const char *store) {
    int folder = open(store, O_PATH | O_DIRECTORY | O_CLOEXEC), found = -1;
    if (folder >= 0 && (!mkdirat(folder, ".locks", 0700) || errno == EEXIST))
        found = openat(folder, ".locks", O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    close(folder);
    return found;
}

static void prepare(const char *store, int programs) {
    struct rlimit files;
    int ends[2], error;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (pipe2(ends, O_CLOEXEC))
        give_up("pipe", errno);
    statuses = ends[0];
    fleet.recipe.status = ends[1];
    fcntl(statuses, F_SETFL, O_NONBLOCK);
    if (pipe2(ends, O_CLOEXEC))
        give_up("pipe", errno);
    fleet.recipe.leash = ends[0];           /* its other end stays open here, and here alone */
    if ((error = cells_open()))
        give_up("/run/tiltyard/cells", error);
    if ((error = cgroups_open()))
        give_up("cgroups", error);
    if ((error = box_open()))
        give_up("descriptors", error);
    if (cgroups_missing()) {
        char what[128];
        snprintf(what, sizeof what, "no cgroup controller '%s', so that limit could not hold: enable or delegate it", cgroups_missing());
        give_up(what, ENODEV);
    }
    if ((holds = open_holds(store)) < 0)
        give_up("the locks of the image store", errno);
    if ((error = root_enter(store)))
        give_up("building the root for boxes", error);
    (void)warm_load(programs);              /* without it Python starts cold */
    close(programs);
    cells_sweep();
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--hash"))
        return puts(TILT_SOURCE_HASH) < 0;
    if (argc == 2 && !strcmp(argv[1], "--doctor")) {
        cgroups_open();
        cgroups_report();
        return 0;
    }
    bool sealed = argc > 2 && !strcmp(argv[1], "--sealed");     /* as name_seal starts it */
    char **given = sealed ? argv + 2 : argv;
    int count = sealed ? argc - 2 : argc;
    if (count != 3 && count != 4)
        give_up("usage: tilt-host CONTROL_FD IMAGE_STORE [CALLERS_UID] | --hash | --doctor", EINVAL);
    control = atoi(given[1]);
    if (!sealed)
        give_up("starting from sealed memory", name_seal(argv, open_programs()));
    prctl(PR_SET_NAME, "tilt-host", 0, 0, 0);
    name_keep(argv);
    fcntl(control, F_SETFD, FD_CLOEXEC);
    check_caller(count == 4 ? (uid_t)strtoul(given[3], NULL, 10) : getuid());
    int signals = open_signals(), programs = atoi(argv[2]);
    fcntl(programs, F_SETFD, FD_CLOEXEC);
    prepare(given[2], programs);
    serve(signals);
    fleet_close();
    return 0;
}
