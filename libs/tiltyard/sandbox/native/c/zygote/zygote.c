/* The C half of a warm interpreter: a Python that has started already waits here; for each command a copy of it enters the
 * box that asked, gives everything up, and returns to Python there.
 *
 * Guarantees: who asks is told by the kernel (SCM_CREDENTIALS), and the copy checks that the box it entered is the asker's;
 * the copy joins the box's cgroup before anything else and is the payload, in every respect, before Python runs again.
 * Does not: listen to a payload. Only PID 1 of a box holds the other end of the socket. */
#define _GNU_SOURCE
#include "zygote.h"

#include "../init/init.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CONTROL = 3, FIRST_FOLDER = 4, ID_BASE = 1900000000, MOST_FDS = 4 + TILT_MAX_FDS, MESSAGE = 192 << 10 };
enum { IN, OUT, ERR, FAULT, OWN };

static char message[MESSAGE];
static const char zygote_hash[] __attribute__((used)) = "tilt-source-hash:" TILT_SOURCE_HASH;

static struct asked {
    struct ucred who;
    int pidfd, fds[MOST_FDS], fd_count;
    struct tilt_warm how;
    const char *strings, *end;
} asked;

static void tell(int kind, int value) {
    const struct tilt_fault fault = {kind, value};
    (void)!write(asked.fds[FAULT], &fault, sizeof fault);
}

/* The copy could not become what was asked: the box is told, and no payload runs. */
static void give_up(void) {
    tell(FAULT_WARM, errno);
    _exit(1);
}

static void take_rights(struct msghdr *head) {
    asked.fd_count = 0;
    asked.who.pid = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(head); part; part = CMSG_NXTHDR(head, part)) {
        if (part->cmsg_level != SOL_SOCKET)
            continue;
        if (part->cmsg_type == SCM_CREDENTIALS)
            memcpy(&asked.who, CMSG_DATA(part), sizeof asked.who);
        if (part->cmsg_type == SCM_RIGHTS) {
            asked.fd_count = (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(asked.fds, CMSG_DATA(part), (size_t)asked.fd_count * sizeof(int));
        }
    }
}

/* One request; false when it makes no sense. */
static bool receive(void) {
    char control[CMSG_SPACE(MOST_FDS * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    struct iovec part = {message, sizeof message};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(CONTROL, &head, MSG_CMSG_CLOEXEC);
    if (got < 0)
        return false;
    take_rights(&head);
    if (got < (ssize_t)sizeof asked.how || head.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || message[got - 1])
        return false;
    memcpy(&asked.how, message, sizeof asked.how);
    asked.strings = message + sizeof asked.how;
    asked.end = message + got;
    uint32_t found = 0;
    for (const char *at = asked.strings; at < asked.end; at++)
        found += !*at;
    return asked.fd_count >= OWN && asked.how.nfds == (uint32_t)asked.fd_count - OWN &&
           (uint64_t)asked.how.argc + asked.how.envc + 1 == found && asked.who.uid > ID_BASE && (asked.who.uid - ID_BASE) % 2 == 1;
}

/* As cgroup_enter of tilt-host does. */
static int join_cgroups(int folders) {
    char tasks[64], procs[64];
    snprintf(tasks, sizeof tasks, "c%u/tasks", (asked.who.uid - ID_BASE) / 2);
    snprintf(procs, sizeof procs, "c%u/cgroup.procs", (asked.who.uid - ID_BASE) / 2);
    for (int i = 0; i < folders; i++) {
        int fd = openat(FIRST_FOLDER + i, tasks, O_WRONLY | O_CLOEXEC);
        if (fd < 0)                         /* v2 */
            fd = openat(FIRST_FOLDER + i, procs, O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "0", 1) != 1)
            return -1;
        close(fd);
    }
    return 0;
}

static int drop_everything(void) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    if (!WITHOUT(PRIVILEGES) && (errno = bounding_set_empty()))
        return -1;
    if (setgroups(0, NULL) || setresgid(RUNS_AS, RUNS_AS, RUNS_AS) || setresuid(RUNS_AS, RUNS_AS, RUNS_AS))
        return -1;
    if (!WITHOUT(PRIVILEGES) && (syscall(SYS_capset, &head, none) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
        return -1;
    const uint64_t seconds = asked.how.cpu_ns / 1000000000u;
    const struct rlimit cpu = {seconds + 2, seconds + 3};
    if ((errno = limits_set(asked.how.nofile, asked.how.file_bytes)) || setrlimit(RLIMIT_CPU, &cpu) || (errno = seccomp_install()))
        return -1;
    return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);      /* as after an exec: its own /proc files are its own */
}

/* In the box, still with the host's rights: the last check, then the payload's identity and descriptors. */
static void become_payload(void) {
    struct stat first;
    while (getppid() != 1)                  /* until PID 1 is the parent, and so will see the end, whenever it comes */
        sched_yield();
    tell(FAULT_PID, (int)getpid());
    if (stat("/proc/1", &first) || first.st_uid != asked.who.uid) {
        errno = ESRCH;
        give_up();
    }
    setsid();
    signal(SIGCHLD, SIG_DFL);
    umask(022);
    if (setns(asked.pidfd, CLONE_NEWUSER) || drop_everything())
        give_up();
    for (int i = IN; i <= ERR; i++)
        if (dup2(asked.fds[i], i) < 0)
            give_up();
}

static void place_descriptors(void) {
    int high[MOST_FDS];
    for (int i = FAULT; i < asked.fd_count; i++)
        if ((high[i] = fcntl(asked.fds[i], F_DUPFD_CLOEXEC, MIN_HIGH_FD)) < 0)
            give_up();
    syscall(SYS_close_range, 3u, MIN_HIGH_FD - 1u, 0u);
    asked.fds[FAULT] = high[FAULT];
    for (uint32_t i = 0; i < asked.how.nfds; i++)
        if (dup2(high[OWN + (int)i], (int)asked.how.fd_numbers[i]) < 0)
            give_up();
    for (uint32_t i = 0; i < asked.how.nfds; i++)
        close(high[OWN + (int)i]);
}

/* A helper that shares our memory is born in the box's PID namespace, joins the box's cgroup and the rest of its namespaces, and
 * makes the copy, so that the copy's orphanhood ends with the box's PID 1 as its parent. True: we are the copy. */
static bool copy_into_box(int folders, int own) {
    const int spaces = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    pid_t helper = setns(asked.pidfd, CLONE_NEWPID) ? -1 : vfork();
    if (!helper) {
        if (join_cgroups(folders) || setns(asked.pidfd, spaces))
            give_up();
        signal(SIGCHLD, SIG_DFL);           /* a copy that ends at once must be left for the box's PID 1 to reap */
        pid_t copy = fork();
        if (!copy)
            return true;
        if (copy < 0)
            give_up();
        _exit(0);
    }
    if (helper < 0)
        tell(FAULT_WARM, errno);
    if (setns(own, CLONE_NEWPID))           /* or the box's PID namespace would stay until the next request */
        _exit(1);
    return false;
}

/* Returns only in a box: what script_take gives. */
static PyObject *serve(PyObject *self, PyObject *count) {
    (void)self;
    int folders = (int)PyLong_AsLong(count), own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    signal(SIGCHLD, SIG_IGN);               /* the helpers are nobody's zombies */
    for (;;) {
        bool sound = receive();
        asked.pidfd = sound ? (int)syscall(SYS_pidfd_open, asked.who.pid, 0) : -1;
        if (asked.pidfd >= 0 && copy_into_box(folders, own))
            break;
        for (int i = 0; i < asked.fd_count; i++)
            close(asked.fds[i]);
        asked.fd_count = 0;
        if (asked.pidfd >= 0)
            close(asked.pidfd);
    }
    become_payload();
    place_descriptors();
    PyOS_AfterFork_Child();
    const char *folder = asked.strings;
    for (uint32_t i = 0; i < asked.how.argc + asked.how.envc; i++)
        folder += strlen(folder) + 1;
    if (chdir(folder)) {
        tell(FAULT_EXEC, errno);
        _exit(127);
    }
    close(asked.fds[FAULT]);
    PyObject *script = script_take(asked.strings, asked.how.argc, asked.how.envc);
    memset(message, 0, (size_t)(asked.end - message));
    return script;
}

static PyMethodDef methods[] = {{"serve", serve, METH_O, "Wait for requests; return in each box."}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "tilt_zygote", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_tilt_zygote(void) {
    PyObject *module = PyModule_Create(&definition);
    return module && PyModule_AddIntConstant(module, "NEW_SEEDS", !WITHOUT(NEW_SEEDS)) ? NULL : module;
}
