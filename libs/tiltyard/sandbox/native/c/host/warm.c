/* The warm interpreter of a pool: a Python that has started already and is copied into boxes (see zygote/).
 *
 * Guarantees: it sees the image and nothing else of the host, and dies with tilt-host. Where it cannot be had (no headers at
 * build, an image without Python) boxes start Python cold, with the same results. */
#define _GNU_SOURCE
#include "host.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONTROL = 3, MOST = 16 };
static pid_t zygote = -1;

static int copy_in(int programs, const char *name, const char *path) {
    char block[16384];
    ssize_t got = 0;
    int from = openat(programs, name, O_RDONLY | O_CLOEXEC);
    int to = from < 0 ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);      /* what is not there is not there */
    while (from >= 0 && to >= 0 && (got = read(from, block, sizeof block)) > 0)
        if (write(to, block, (size_t)got) != got)
            got = -1;
    int error = from < 0 || to < 0 || got < 0 ? errno : 0;
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    return error;
}

int warm_load(int programs) {
    return copy_in(programs, "tilt_zygote.so", "/z/tilt_zygote.so") ?: copy_in(programs, "zygote", "/z/zygote.py");
}

/* The image as its root, read-only, with our two files in /mnt. */
static int enter_image(const char *image) {
    char path[TILT_DIGEST + 16];
    snprintf(path, sizeof path, "/m/i/%s/root", image);
    if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) || mount(path, "/b", NULL, MS_BIND, NULL))
        return errno;
    int error = box_borrow_usr(image);
    if (error || mount("/d", "/b/dev", NULL, MS_BIND, NULL) || mount("/z", "/b/mnt", NULL, MS_BIND, NULL) ||
        umount2("/m", MNT_DETACH) || chdir("/b") || mount(".", "/", NULL, MS_MOVE, NULL) ||
        chroot(".") || chdir("/"))
        return error ? error : errno;
    return 0;
}

/* Descriptors: 0 to 2 the ends of a pipe (streams must not look like files), 3 its socket, then the cgroup folders. */
static void place(int socket, const int *folders, int count) {
    int ends[2], high[MOST];
    if (pipe(ends))
        _exit(1);
    high[0] = fcntl(socket, F_DUPFD, 64);
    for (int i = 0; i < count; i++)
        high[1 + i] = fcntl(folders[i], F_DUPFD, 64);
    int in = fcntl(ends[0], F_DUPFD, 64), out = fcntl(ends[1], F_DUPFD, 64);
    dup2(in, 0);
    dup2(out, 1);
    dup2(out, 2);
    for (int i = 0; i <= count; i++)
        if (dup2(high[i], CONTROL + i) < 0)
            _exit(1);
    syscall(SYS_close_range, CONTROL + 1u + (unsigned)count, ~0u, 0u);
}

static void become_zygote(const char *image, const char *python, int socket, pid_t host) {
    int folders[MOST], count = cgroup_folders(folders);
    char number[16];
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) || getppid() != host)     /* from here on, not only once Python has started */
        _exit(1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (enter_image(image))
        _exit(1);
    place(socket, folders, count);
    snprintf(number, sizeof number, "%d", count);
    char *argv[] = {(char *)python, "-I", "-S", "/mnt/zygote.py", number, NULL};
    char *env[] = {"LANG=C.UTF-8", "HOME=/box", "LD_BIND_NOW=1", NULL};     /* a copy that binds a symbol pays for it */
    execve(python, argv, env);
    _exit(1);
}

/* Starts it; the descriptor that boxes ask it through, -1 when there is none. */
int warm_start(const char *image) {
    char link[TILT_DIGEST + 16], python[512];
    int ends[2], on = 1, room = 1 << 20;
    pid_t host = getpid();
    snprintf(link, sizeof link, "/m/i/%s/python", image);
    ssize_t length = readlink(link, python, sizeof python - 1);
    if (WITHOUT(PIDNS) || WITHOUT(USERNS))
        return -1;                          /* a copy finds its box by both */
    if (length <= 0 || access("/z/tilt_zygote.so", F_OK) || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends))
        return -1;
    python[length] = 0;
    setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    if (!(zygote = fork()))
        become_zygote(image, python, ends[0], host);
    close(ends[0]);
    if (zygote < 0) {
        close(ends[1]);
        return -1;
    }
    return ends[1];
}

void warm_stop(void) {
    if (zygote > 0 && !kill(zygote, SIGKILL))
        waitpid(zygote, NULL, 0);
    zygote = -1;
}
