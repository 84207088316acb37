/* One payload process: new session, the payload's identity, exactly the descriptors that were asked for. */
#define _GNU_SOURCE
#include "init.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ends {
    int in, out, err, fault;
};

static void fail(int fault) {
    const struct tilt_fault failure = {FAULT_EXEC, errno};
    (void)!write(fault, &failure, sizeof failure);
    _exit(127);
}

static void reset_signals(void) {
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool is_tty(const struct exec_plan *plan) {
    return plan->how.flags & EXEC_TTY;
}

/* Descriptors of the request that are not the command's own: a terminal's two ends. */
static uint32_t own_fds(const struct exec_plan *plan) {
    return is_tty(plan) ? 2 : 0;
}

static void set_descriptors(const struct exec_plan *plan, const int *fds, const struct ends *theirs) {
    int in = theirs->in >= 0 ? theirs->in : open("/dev/null", O_RDONLY);
    if (!WITHOUT(CLOSED_FDS) && syscall(SYS_close_range, 3u, ~0u >> 1 /* gVisor takes no more */, 4u /* CLOSE_RANGE_CLOEXEC */))
        fail(theirs->fault);
    if (dup2(in, 0) < 0 || dup2(theirs->out, 1) < 0 || dup2(theirs->err, 2) < 0)
        fail(theirs->fault);
    for (uint32_t i = own_fds(plan); i < plan->how.nfds; i++)
        if (dup2(fds[i], (int)plan->fd_numbers[i]) < 0)
            fail(theirs->fault);
    if (is_tty(plan) && ioctl(0, TIOCSCTTY, 0))
        fail(theirs->fault);
}

/* The kernel's per-process limit stands behind the cgroup's count, for hosts without one. */
static void limit_cpu(uint64_t cpu_ns) {
    struct rlimit most = {cpu_ns / 1000000000u + 2, cpu_ns / 1000000000u + 3};
    setrlimit(RLIMIT_CPU, &most);
}

static void run_from_path(char **argv, char **env, int fault) {
    const char *path = "/usr/bin:/bin";
    int seen = ENOENT;
    char full[4096];
    if (strchr(argv[0], '/')) {
        execve(argv[0], argv, env);
        fail(fault);
    }
    for (char **each = env; *each; each++)
        if (!strncmp(*each, "PATH=", 5))
            path = *each + 5;
    for (const char *stop; path; path = stop ? stop + 1 : NULL) {
        stop = strchrnul(path, ':');
        if ((size_t)snprintf(full, sizeof full, "%.*s/%s", (int)(stop - path), path, argv[0]) < sizeof full) {
            execve(full, argv, env);
            if (errno != ENOENT && errno != ENOTDIR)
                seen = errno;
        }
        stop = *stop ? stop : NULL;
    }
    errno = seen;
    fail(fault);
}

static void child(const struct exec_plan *plan, const int *fds, const struct ends *theirs) {
    setsid();
    umask(022);
    reset_signals();
    set_descriptors(plan, fds, theirs);
    limit_cpu(plan->how.cpu_ns);
    if (setgroups(0, NULL) || setresgid(RUNS_AS, RUNS_AS, RUNS_AS) || setresuid(RUNS_AS, RUNS_AS, RUNS_AS))
        fail(theirs->fault);
    if (chdir(plan->cwd))
        fail(theirs->fault);
    run_from_path(plan->argv, plan->env, theirs->fault);
}

/* A pipe whose ends lie above every number that a payload may ask for. */
static int high_pipe(int ends[2]) {
    int low[2];
    if (pipe2(low, O_CLOEXEC))
        return -1;
    for (int i = 0; i < 2; i++) {
        ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, MIN_HIGH_FD);
        close(low[i]);
    }
    return ends[0] < 0 || ends[1] < 0 ? -1 : 0;
}

static void close_all(const int *fds, int count) {
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static bool add(char *into, size_t *size, size_t room, const char *text) {
    size_t length = strlen(text) + 1;
    if (length > room - *size)
        return false;
    memcpy(into + *size, text, length);
    *size += length;
    return true;
}

/* Asks the warm interpreter for a copy of itself. False: there is none, or the command is too large for it. */
static bool ask_zygote(const struct exec_plan *plan, const int *fds, const struct ends *theirs) {
    static char request[128 << 10];
    struct tilt_warm how = {
        .cpu_ns = plan->how.cpu_ns, .nofile = payload_nofile, .file_bytes = payload_file_bytes,
        .argc = plan->how.argc - 3, .envc = plan->how.envc, .nfds = plan->how.nfds,
    };
    memcpy(how.fd_numbers, plan->fd_numbers, sizeof how.fd_numbers);
    memcpy(request, &how, sizeof how);
    size_t size = sizeof how;
    bool fits = true;
    for (char **each = plan->argv + 3; fits && *each; each++)
        fits = add(request, &size, sizeof request, *each);
    for (char **each = plan->env; fits && *each; each++)
        fits = add(request, &size, sizeof request, *each);
    if (!fits || !add(request, &size, sizeof request, plan->cwd))
        return false;
    int sent[4 + TILT_MAX_FDS] = {theirs->in, theirs->out, theirs->err, theirs->fault};
    memcpy(sent + 4, fds, plan->how.nfds * sizeof *fds);
    char room[CMSG_SPACE(sizeof sent)] = {0};
    struct iovec part = {request, size};
    size_t rights = (4 + plan->how.nfds) * sizeof *sent;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(rights)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(rights);
    memcpy(CMSG_DATA(head), sent, rights);
    return sendmsg(INIT_ZYGOTE, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

static pid_t start(const struct exec_plan *plan, const int *fds, struct ends *theirs) {
    if (plan->how.flags & EXEC_WARM && plan->how.argc > 3 && !is_tty(plan) && !tree_branch) {
        int null = theirs->in < 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
        struct ends lent = *theirs;
        lent.in = null >= 0 ? null : theirs->in;
        bool warm = ask_zygote(plan, fds, &lent);
        if (null >= 0)
            close(null);
        if (warm)
            return 0;
    }
    pid_t pid = fork();
    if (!pid)
        child(plan, fds, theirs);
    return pid;
}

/* On a terminal: its slave is the command's three streams, its master is ours. */
static int spawn_on_tty(const struct exec_plan *plan, const int *fds, struct spawned *made) {
    int fault[2], slave = fds[1];
    if (high_pipe(fault))
        return errno;
    struct ends theirs = {.in = slave, .out = slave, .err = slave, .fault = fault[1]};
    int master = fcntl(fds[0], F_DUPFD_CLOEXEC, MIN_HIGH_FD);
    int in = plan->how.stdin_size ? fcntl(fds[0], F_DUPFD_CLOEXEC, MIN_HIGH_FD) : -1;
    pid_t pid = master < 0 ? -1 : start(plan, fds, &theirs);
    int error = errno;
    close(fault[1]);
    *made = (struct spawned){.pid = pid, .in = in, .out = master, .err = -1, .fault = fault[0]};
    if (pid < 0) {
        close_all((int[]){in, master, fault[0]}, 3);
        return error;
    }
    fcntl(master, F_SETFL, O_NONBLOCK);
    fcntl(fault[0], F_SETFL, O_NONBLOCK);
    return 0;
}

int spawn(const struct exec_plan *plan, const int *fds, struct spawned *made) {
    if (is_tty(plan))
        return spawn_on_tty(plan, fds, made);
    int pipes[8] = {-1, -1, -1, -1, -1, -1, -1, -1};            /* out, err, fault, in */
    bool feed = plan->how.stdin_size > 0 || WITHOUT(END_OF_INPUT);
    for (int i = 0; i < 3 + feed; i++)
        if (high_pipe(pipes + 2 * i)) {
            int error = errno;
            close_all(pipes, 8);
            return error;
        }
    struct ends theirs = {.in = pipes[6], .out = pipes[1], .err = pipes[3], .fault = pipes[5]};
    pid_t pid = start(plan, fds, &theirs);
    int error = errno;
    close_all((int[]){theirs.in, theirs.out, theirs.err, theirs.fault}, 4);
    *made = (struct spawned){.pid = pid, .in = pipes[7], .out = pipes[0], .err = pipes[2], .fault = pipes[4]};
    if (pid < 0) {
        close_all((int[]){made->in, made->out, made->err, made->fault}, 4);
        return error;
    }
    for (const int *fd = (int[]){made->in, made->out, made->err, made->fault, -2}; *fd != -2; fd++)
        if (*fd >= 0)
            fcntl(*fd, F_SETFL, O_NONBLOCK);
    return 0;
}
