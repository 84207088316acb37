/* tilt-door: starts a tilt-host for each program of a group that asks, so that what uses sandboxes need not be root.
 *
 * Guarantees: nobody comes in but members of the socket's group (its mode) whom the kernel names (SO_PEERCRED); a caller gives
 * no path, argument, environment or descriptor; a tilt-host serves its one caller and ends with it; at most `MOST` at once for
 * all callers together.
 * Does not: outlive its own end with work: boxes that are open then stay until their callers go. */
#define _GNU_SOURCE
#include "../signals.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BACKLOG = 64, CONTROL = 3 };
static const char *const door_path = "/run/tiltyard/door";
static char *program;               /* tilt-host, beside this program */
static long serving;

static void give_up(const char *what, int error) {
    fprintf(stderr, "tilt-door: %s: %s\n", what, strerror(error));
    exit(1);
}

/* Taken by a rename, so that there is no moment at which somebody else could come in. */
static int open_door(gid_t group) {
    struct sockaddr_un here = {.sun_family = AF_UNIX}, there = here;
    snprintf(here.sun_path, sizeof here.sun_path, "%s.%d", door_path, (int)getpid());
    snprintf(there.sun_path, sizeof there.sun_path, "%s", door_path);
    int door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), other = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (door < 0 || other < 0)
        give_up("socket", errno);
    if (!connect(other, (struct sockaddr *)&there, sizeof there))
        give_up(door_path, EADDRINUSE);
    close(other);
    umask(0777);
    if (bind(door, (struct sockaddr *)&here, sizeof here) || chown(here.sun_path, 0, group) || chmod(here.sun_path, 0660) ||
        listen(door, BACKLOG) || rename(here.sun_path, door_path))
        give_up(here.sun_path, errno);
    umask(022);
    return door;
}

static void become_host(int caller, char *store) {
    char uid[16], control[4];
    struct ucred who;
    socklen_t size = sizeof who;
    sigset_t none;
    if (getsockopt(caller, SOL_SOCKET, SO_PEERCRED, &who, &size))
        _exit(1);
    snprintf(uid, sizeof uid, "%u", who.uid);
    snprintf(control, sizeof control, "%d", CONTROL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (setsid() < 0 || (caller == CONTROL ? fcntl(caller, F_SETFD, 0) : dup2(caller, CONTROL)) < 0)
        _exit(1);
    char *argv[] = {program, control, store, uid, NULL}, *environment[] = {NULL};
    execve(program, argv, environment);
    fprintf(stderr, "tilt-door: %s: %s\n", program, strerror(errno));
    _exit(1);
}

static void let_in(int door, char *store) {
    int caller = accept4(door, NULL, NULL, SOCK_CLOEXEC);
    if (caller < 0)
        return;
    pid_t host = fork();
    if (!host)
        become_host(caller, store);
    serving += host > 0;
    close(caller);
}

static void bury(void) {
    while (waitpid(-1, NULL, WNOHANG) > 0)
        serving--;
}

/* While `most` are served the next callers wait in the backlog. */
static void serve(int door, int signals, char *store, long most) {
    struct signalfd_siginfo seen;
    for (;;) {
        struct pollfd sources[] = {{.fd = signals, .events = POLLIN}, {.fd = serving < most ? door : -1, .events = POLLIN}};
        if (poll(sources, 2, -1) < 0 && errno != EINTR)
            return;
        while (sources[0].revents && read(signals, &seen, sizeof seen) == sizeof seen)
            if (seen.ssi_signo != SIGCHLD)
                return;
        bury();
        if (sources[1].revents)
            let_in(door, store);
    }
}

static char *beside(const char *name) {
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    char *slash = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
    if (!slash || (size_t)(slash - path) + strlen(name) + 2 > sizeof path)
        give_up("/proc/self/exe", errno ? errno : ENAMETOOLONG);
    strcpy(slash + 1, name);
    return path;
}

/* Who could change what runs as root would be root. */
static void check_owner(const char *path) {
    struct stat found;
    if (stat(path, &found))
        give_up(path, errno);
    if (found.st_uid || found.st_mode & 022) {
        fprintf(stderr, "tilt-door: %s can be changed by others than root: install Tiltyard as root for this, with umask 022\n", path);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--hash"))
        return puts(TILT_SOURCE_HASH) < 0;
    if (argc != 4)
        give_up("usage: tilt-door IMAGE_STORE GROUP_ID MOST | --hash", EINVAL);
    if (geteuid())
        give_up("it makes sandboxes for others, and so needs root", EPERM);
    program = beside("");
    check_owner(program);
    program = beside("tilt-host");
    check_owner(program);
    (void)mkdir("/run/tiltyard", 0755);
    int signals = open_signals(), door = open_door((gid_t)strtoul(argv[2], NULL, 10));
    fprintf(stderr, "tilt-door: open at %s\n", door_path);
    serve(door, signals, argv[1], strtol(argv[3], NULL, 10));
    unlink(door_path);
    return 0;
}
