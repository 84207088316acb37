/* A box in the making: clone into fresh namespaces, build the root, give everything up, become tilt-init.
 *
 * Order matters: mounts are made while the child still has the host's rights, in a mount namespace that the box's user
 * namespace does not own; the user namespace comes last, so the payload holds no capability over what it sees. */
#define _GNU_SOURCE
#include "host.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct box *making;
static const struct recipe *by;

static void fail(enum tilt_step step) {
    struct tilt_status status = {.cell = making->cell.number, .life = making->life, .step = step, .error = errno};
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
    TRY(STEP_TMPFS, mount("box", "/t", "tmpfs", MS_NOSUID | MS_NODEV, options));
    make_folder("/t/u", 0755, 0);
    make_folder("/t/w", 0755, 0);
    make_folder("/t/s", 01777, 0);
    make_folder("/t/u/tmp", 01777, 0);
    make_folder("/t/u/box", 0755, cell_payload_uid(&making->cell));
    snprintf(options, sizeof options, "lowerdir=/i/%s/root,upperdir=/t/u,workdir=/t/w", by->image);
    TRY(STEP_OVERLAY, mount("box", "/b", "overlay", MS_NOSUID | MS_NODEV, options));
}

/* The image `host` borrows /usr; what an administrator put into /usr/local is not part of it. */
int box_borrow_usr(const char *image) {
    char local[TILT_DIGEST + 16];
    snprintf(local, sizeof local, "/i/%s/local", image);
    if (access(local, F_OK))
        return 0;
    return mount("/u", "/b/usr", NULL, MS_BIND | MS_REC, NULL) || mount(local, "/b/usr/local", NULL, MS_BIND, NULL) ? errno : 0;
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
                      mount("/t/s", "/b/dev/shm", NULL, MS_BIND, NULL));
}

static void become_root_of_box(void) {
    TRY(STEP_ROOT, umount2("/t", MNT_DETACH) || umount2("/i", MNT_DETACH) || umount2("/u", MNT_DETACH));
    TRY(STEP_ROOT, chdir("/b") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"));
}

static void take_identity(void) {
    TRY(STEP_HOSTNAME, sethostname("box", 3));
    TRY(STEP_USERNS, !WITHOUT(USERNS) && setns(making->cell.userns, CLONE_NEWUSER));
    TRY(STEP_IDENTITY, setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0));
}

/* tilt-init's descriptors go to 0..9 and its program to 10; everything else closes. */
static void place_descriptors(const int wanted[INIT_FDS + 1]) {
    int high[INIT_FDS + 1];
    for (int i = 0; i <= INIT_FDS; i++)
        TRY(STEP_DESCRIPTORS, (high[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, 32)) < 0);
    for (int i = 0; i < INIT_FDS; i++)
        TRY(STEP_DESCRIPTORS, dup2(high[i], i) < 0);
    TRY(STEP_DESCRIPTORS, dup3(high[INIT_FDS], INIT_FDS, O_CLOEXEC) < 0);
    TRY(STEP_DESCRIPTORS, syscall(SYS_close_range, INIT_FDS + 1u, ~0u, 0u));
}

static void become_init(int socket, const int meters[INIT_METERS]) {
    struct recipe kept = *by;
    int wanted[INIT_FDS + 1] = {socket, by->status, by->leash};
    memcpy(wanted + INIT_CPU, meters, INIT_METERS * sizeof *meters);
    wanted[INIT_ZYGOTE] = by->zygote >= 0 ? by->zygote : by->leash;     /* no socket: asking fails, and Python starts cold */
    wanted[INIT_FDS] = by->init_file;
    place_descriptors(wanted);
    kept.status = INIT_STATUS;
    by = &kept;
    char numbers[5][24];
    const uint64_t values[5] = {by->limits.nofile, by->limits.file_bytes, by->limits.cpu_milli, making->cell.number, making->life};
    for (int i = 0; i < 5; i++)
        snprintf(numbers[i], sizeof numbers[i], "%llu", (unsigned long long)values[i]);
    char *argv[] = {"tilt-init", numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], NULL}, *env[] = {NULL};
    syscall(SYS_execveat, INIT_FDS, "", argv, env, AT_EMPTY_PATH);
    fail(STEP_EXEC);
}

static void child(int socket) {
    int meters[INIT_METERS];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    TRY(STEP_CGROUP, (errno = cgroup_enter(making->cell.number)) || unshare(CLONE_NEWCGROUP));
    cgroup_meters(making->cell.number, meters);
    TRY(STEP_NETNS, !WITHOUT(NETNS) && setns(making->cell.netns, CLONE_NEWNET));
    make_layers();
    TRY(STEP_USR, (errno = box_borrow_usr(by->image)));
    make_proc_and_dev();
    become_root_of_box();
    take_identity();
    become_init(socket, meters);
}

int box_clone(struct box *box, const struct recipe *recipe) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends))
        return errno;
    making = box;
    by = recipe;
    struct clone_args how = {.flags = (WITHOUT(PIDNS) ? 0 : CLONE_NEWPID) | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS, .exit_signal = SIGCHLD};
    box->oom_before = cgroup_oom_kills(box->cell.number);
    pid_t pid = (pid_t)syscall(SYS_clone3, &how, sizeof how);
    if (!pid)
        child(ends[1]);
    int error = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return error;
    }
    box->pid = pid;
    box->socket = ends[0];
    return 0;
}
