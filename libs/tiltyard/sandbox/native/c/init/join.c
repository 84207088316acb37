/* tilt-init as PID 1 of somebody else's container: it calls Python over a socket in a bound folder, and finds for itself
 * what tilt-host would have handed it.
 *
 * Guarantees: the call is the last thing that is done before serving, so whoever answers speaks to a box that is ready; what
 * failed before is told by the exit status (64 and the step).
 * Does not: make limits. The container has them; here they are only read. */
#define _GNU_SOURCE
#include "init.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PLACES = INIT_FDS, HIGH = 32 };

/* v1 first: a hybrid host has both folders, and its controllers are v1's. */
static const char *const meters[][2] = {
    {"cpuacct/cpuacct.usage", "cpu.stat"},   {"memory/memory.max_usage_in_bytes", "memory.peak"},
    {"memory/memory.oom_control", "memory.events"}, {"pids/pids.events", "pids.events"},
    {"cpu/cpu.stat", "cpu.stat"},            {"memory/memory.usage_in_bytes", "memory.current"},
};

static int open_meter(const char *const names[2]) {
    char path[96];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/sys/fs/cgroup/%s", names[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0)
            return fd;
    }
    return open("/dev/null", O_RDWR | O_CLOEXEC);
}

/* Every descriptor that tilt-host would have placed. The leash is a pipe that nobody closes: the container's end is ours. */
int join_prepare(void) {
    int wanted[PLACES], ends[2];
    if (pipe2(ends, O_CLOEXEC) || fcntl(ends[1], F_DUPFD_CLOEXEC, HIGH) < 0)
        return errno;
    wanted[INIT_SOCKET] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    wanted[INIT_STATUS] = open("/dev/null", O_RDWR | O_CLOEXEC);
    wanted[INIT_LEASH] = wanted[INIT_ZYGOTE] = ends[0];     /* no warm interpreter: asking a pipe fails, and Python starts cold */
    for (int i = 0; i < INIT_METERS; i++)
        wanted[INIT_CPU + i] = open_meter(meters[i]);
    for (int i = 0; i < PLACES; i++)
        if ((wanted[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, HIGH)) < 0)
            return errno;
    for (int i = 0; i < PLACES; i++)
        if (dup2(wanted[i], i) < 0 || close(wanted[i]))
            return errno;
    return 0;
}

/* What a container shows its payload of us and of its runtime: our arguments and environment become zeros, and two devices that
 * gVisor gives to everyone go. The memory belongs to this process, which is what makes it safe to overwrite. */
void join_hide(char **arguments) {
    for (; *arguments; arguments++)
        memset(*arguments, 0, strlen(*arguments));
    for (char **variable = environ; *variable; variable++)
        memset(*variable, 0, strlen(*variable));
    (void)unlink("/dev/fuse");
    (void)unlink("/dev/net/tun");
}

int join_call(const char *path) {
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof there.sun_path)
        return ENAMETOOLONG;
    strcpy(there.sun_path, path);
    return connect(INIT_SOCKET, (struct sockaddr *)&there, sizeof there) ? errno : 0;
}
