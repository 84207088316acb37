/* A box in the making: clone into fresh namespaces, build the root, give everything up, become tilt-init.
 *
 * Becoming tilt-init is a call, not an exec: starting a program costs as much as all the mounts. The child has none of
 * tilt-host's tables (fleet.c keeps them out of it), and the program that both run is sealed memory (host.c).
 *
 * Order matters: mounts are made while the child still has the host's rights, in a mount namespace that the box's user
 * namespace does not own; the user namespace comes last, so the payload holds no capability over what it sees. */
#define _GNU_SOURCE
#include "host.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct box making;               /* a copy: the child does not have the table of boxes */
static const struct recipe *by;
enum { INHERITED_SOCKET, INHERITED_USERNS, INHERITED_ROUTE, INHERITED_FDS, LOW_FDS = 64, MANY_FDS = 512 };

static void fail(enum tilt_step step) {
    struct tilt_status status = {.cell = making.cell.number, .life = making.life, .step = step, .error = errno};
    (void)!write(by->status, &status, sizeof status);
    _exit(1);
}

#define TRY(step, call) do { if (call) fail(step); } while (0)

static void make_folder(const char *path, mode_t mode, uid_t owner) {
    TRY(STEP_LAYERS, mkdir(path, mode) || (owner && lchown(path, owner, owner)));
}

/* One sized tmpfs holds all that the box may write: the overlay's upper layer and /dev/shm. */
static void make_layers(void) {
    char options[192];
    snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=0755", WITHOUT(DISK) ? 0 : (unsigned long long)by->limits.disk,
             WITHOUT(INODES) ? 0 : (unsigned long long)by->limits.inodes);
    TRY(STEP_TMPFS, mount("box", "/m/t", "tmpfs", MS_NOSUID | MS_NODEV, options));
    make_folder("/m/t/u", 0755, 0);
    make_folder("/m/t/w", 0755, 0);
    make_folder("/m/t/s", 01777, 0);
    make_folder("/m/t/u/tmp", 01777, 0);
    make_folder("/m/t/u/box", 0755, cell_payload_uid(&making.cell));
    snprintf(options, sizeof options, "lowerdir=/m/i/%s/root,upperdir=/m/t/u,workdir=/m/t/w", by->image);
    TRY(STEP_OVERLAY, mount("box", "/b", "overlay", MS_NOSUID | MS_NODEV, options));
}

/* The image `host` borrows /usr; what an administrator put into /usr/local is not part of it. */
int box_borrow_usr(const char *image) {
    char local[TILT_DIGEST + 16];
    snprintf(local, sizeof local, "/m/i/%s/local", image);
    if (access(local, F_OK))
        return 0;
    return mount("/m/u", "/b/usr", NULL, MS_BIND | MS_REC, NULL) || mount(local, "/b/usr/local", NULL, MS_BIND, NULL) ? errno : 0;
}

static void mask(const char *const *names, const char *cover) {
    char path[64];
    for (; *names && !WITHOUT(PROC_MASKS); names++) {
        snprintf(path, sizeof path, "/b/proc/%s", *names);
        if (mount(cover, path, NULL, MS_BIND, NULL) && errno != ENOENT)
            fail(STEP_PROC);
    }
}

static void make_proc_and_dev(void) {
    TRY(STEP_PROC, mount("proc", "/b/proc", "proc", (WITHOUT(PROC_READONLY) ? 0 : MS_RDONLY) | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
    mask(proc_masks, "/d/null");
    mask(proc_folder_masks, "/e");
    TRY(STEP_DEV, mount("/d", "/b/dev", NULL, MS_BIND, NULL) ||
                      mount(NULL, "/b/dev", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL) ||
                      mount("/m/t/s", "/b/dev/shm", NULL, MS_BIND, NULL));
}

static void become_root_of_box(void) {
    TRY(STEP_ROOT, umount2("/m", MNT_DETACH));
    TRY(STEP_ROOT, chdir("/b") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"));
}

static void take_identity(void) {
    TRY(STEP_HOSTNAME, sethostname("box", 3));
    TRY(STEP_USERNS, !WITHOUT(USERNS) && setns(making.cell.userns, CLONE_NEWUSER));
    TRY(STEP_IDENTITY, setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0));
}

/* tilt-init's descriptors go to 0..9; everything else closes. */
static void place_descriptors(const int wanted[INIT_FDS]) {
    int high[INIT_FDS];
    for (int i = 0; i < INIT_FDS; i++)
        TRY(STEP_DESCRIPTORS, (high[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, 32)) < 0);
    for (int i = 0; i < INIT_FDS; i++)
        TRY(STEP_DESCRIPTORS, dup2(high[i], i) < 0);
    TRY(STEP_DESCRIPTORS, syscall(SYS_close_range, (unsigned)INIT_FDS, ~0u, 0u));
}

static void become_init(int socket, const int meters[INIT_METERS]) {
    const struct limits *limits = &by->limits;
    int wanted[INIT_FDS] = {socket, by->status, by->leash};
    memcpy(wanted + INIT_CPU, meters, INIT_METERS * sizeof *meters);
    wanted[INIT_ZYGOTE] = by->zygote >= 0 ? by->zygote : by->leash;     /* no socket: asking fails, and Python starts cold */
    place_descriptors(wanted);
    name_forget();
    init_run(&(struct init_start){.nofile = limits->nofile, .file_bytes = limits->file_bytes, .cpu_milli = limits->cpu_milli,
                                  .cell = making.cell.number, .life = making.life});
}

/* What a child needs has low numbers in tilt-host's table, for the length of box_clone. */
static int inherited[INHERITED_FDS], parted;

int box_open(void) {
    parted = eventfd(0, EFD_CLOEXEC);
    for (int i = 0; i < INHERITED_FDS; i++)
        if (parted < 0 || (inherited[i] = fcntl(parted, F_DUPFD_CLOEXEC, 0)) < 0 || inherited[i] >= LOW_FDS)
            return errno ? errno : EMFILE;
    return 0;
}

static int lay_out(int socket, int userns, int route) {
    const int from[INHERITED_FDS] = {[INHERITED_SOCKET] = socket, [INHERITED_USERNS] = userns, [INHERITED_ROUTE] = route};
    for (int i = 0; i < INHERITED_FDS; i++)
        if (dup3(from[i], inherited[i], O_CLOEXEC) < 0)
            return errno;
    return 0;
}

/* Of ten thousand descriptors a copy that is closed again costs more than all the rest. Where there are many, a child begins with
 * tilt-host's own table and leaves it at once with a copy of the low ones; tilt-host waits for that. */
static void part(void) {
    const uint64_t one = 1;
    int error = syscall(SYS_close_range, (unsigned)LOW_FDS, ~0u, CLOSE_RANGE_UNSHARE) ? errno : 0;
    (void)!write(parted, &one, sizeof one);
    TRY(STEP_DESCRIPTORS, (errno = error));
}

/* Until the child has its own descriptors, or is dead. */
static void await_parting(int child) {
    uint64_t count;
    struct pollfd sources[] = {{.fd = parted, .events = POLLIN}, {.fd = child, .events = POLLIN}};
    while (poll(sources, 2, -1) < 0 && errno == EINTR)
        ;
    if (sources[0].revents)
        (void)!read(parted, &count, sizeof count);
    close(child);
}

static void child(bool shares) {
    int meters[INIT_METERS];
    sigset_t none;
    if (shares)
        part();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    TRY(STEP_CGROUP, (errno = cgroup_enter(making.cell.number)) || unshare(CLONE_NEWCGROUP));
    cgroup_meters(making.cell.number, meters);
    TRY(STEP_NETNS, !WITHOUT(NETNS) && (errno = cell_enter_netns(&making.cell)));
    make_layers();
    TRY(STEP_USR, (errno = box_borrow_usr(by->image)));
    make_proc_and_dev();
    become_root_of_box();
    take_identity();
    become_init(inherited[INHERITED_SOCKET], meters);
}

int box_clone(struct box *box, const struct recipe *recipe) {
    int ends[2], pidfd = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
        return errno;
    bool shares = ends[1] > MANY_FDS;
    box->oom_before = cgroup_oom_kills(box->cell.number);
    int error = lay_out(ends[1], box->cell.userns, box->cell.route);
    close(ends[1]);
    making = *box;
    making.cell.userns = inherited[INHERITED_USERNS];
    making.cell.route = inherited[INHERITED_ROUTE];
    by = recipe;
    struct clone_args how = {
        .flags = (WITHOUT(PIDNS) ? 0 : CLONE_NEWPID) | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS |
                 (shares ? CLONE_FILES | CLONE_PIDFD : 0),
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .exit_signal = SIGCHLD,
    };
    pid_t pid = error ? -1 : (pid_t)syscall(SYS_clone3, &how, sizeof how);
    if (!pid)
        child(shares);
    error = pid < 0 && !error ? errno : error;
    if (shares && pid > 0)
        await_parting(pidfd);
    lay_out(parted, parted, parted);            /* or a box's socket would not end with it */
    if (pid < 0) {
        close(ends[0]);
        return error;
    }
    box->pid = pid;
    box->socket = ends[0];
    return 0;
}
