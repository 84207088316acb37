/* tilt-init: PID 1 of a box. Serves exec, write and read over one socket; dies when Python or tilt-host dies.
 *
 * Guarantees: holds no capability outside its user namespace and is not dumpable; runs under another uid than the payload;
 * reaps every orphan. Its death is the death of the whole box (the kernel kills a PID namespace with its PID 1).
 * Does not: make the box. That is done before it starts, by tilt-host's child (host/box.c). */
#define _GNU_SOURCE
#include "init.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum { READ_CAP = 256 << 10, LEAST_ROOM = 512, SURVEY_CAP = 128 << 10, MOST_LOOKS = 2500 };
static struct tilt_status status;
static int signals;
static bool joined;             /* in a container that tilt-host did not make: nobody reads our status */
uint64_t payload_nofile, payload_file_bytes;

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void die(int step, int error) {
    status.step = (uint32_t)step;
    status.error = error;
    (void)!write(INIT_STATUS, &status, sizeof status);
    _exit(joined ? EXIT_JOIN + step : 1);
}

static void answer_done(uint32_t id, int error) {
    const struct tilt_done done = {.error = error};
    link_send(SAY_DONE, 0, id, &done, sizeof done, NULL, 0);
}

static void answer_write(uint32_t id, const char *frame, size_t size) {
    const char *path, *data, *cursor = frame;
    struct tilt_file how;
    int error = parse_file(&cursor, frame + size, &how, &path, &data);
    answer_done(id, error ?: file_write(&how, path, data));
}

typedef int answer_path(const struct tilt_read *how, const char *path, char *into, size_t *got, uint64_t *size);

/* A request that names a path: read, list, stat, mkdir. */
static void answer_about(uint32_t id, const char *frame, size_t size, answer_path *answer) {
    const char *path;
    struct tilt_read how;
    struct tilt_done done = {.error = parse_read(frame, size, &how, &path)};
    size_t got = 0;
    if (!done.error && how.size > READ_CAP)
        how.size = READ_CAP;
    char *into = done.error ? NULL : malloc(how.size > LEAST_ROOM ? how.size : LEAST_ROOM);
    if (!done.error)
        done.error = into ? answer(&how, path, into, &got, &done.size) : ENOMEM;
    link_send(SAY_DONE, 0, id, &done, sizeof done, into, done.error ? 0 : got);
    free(into);
}

static int answer_stat(const struct tilt_read *how, const char *path, char *into, size_t *got, uint64_t *size) {
    (void)size;
    return file_stat(how, path, into, got);
}

static int answer_mkdir(const struct tilt_read *how, const char *path, char *into, size_t *got, uint64_t *size) {
    (void)into, (void)got, (void)size;
    return file_mkdir(how, path);
}

static void answer_stats(uint32_t id) {
    const struct tilt_done done = {0};
    struct tilt_stats stats;
    state_stats(&stats);
    link_send(SAY_DONE, 0, id, &done, sizeof done, &stats, sizeof stats);
}

static void answer_survey(uint32_t id) {
    char *text = malloc(SURVEY_CAP);
    const struct tilt_done done = {.error = text ? 0 : ENOMEM};
    link_send(SAY_DONE, 0, id, &done, sizeof done, text, text ? state_survey(text, SURVEY_CAP) : 0);
    free(text);
}

static void answer_port(uint32_t id, const char *frame, size_t size, int (*make)(const struct tilt_connect *, int)) {
    struct tilt_connect how;
    int carrier = -1;
    int error = link_take_fds(1, &carrier) ?: parse_connect(frame, size, &how) ?: make(&how, carrier);
    if (carrier >= 0)
        close(carrier);
    answer_done(id, error);
}

static void serve(void) __attribute__((noreturn));

/* A copy of this process serves one more command over a socket of its own, and ends with it. */
static void answer_branch(uint32_t id) {
    int socket = -1;
    pid_t pid = -1;
    struct tilt_done done = {.error = link_take_fds(1, &socket)};
    if (!done.error)
        done.error = tree_grow(&pid);
    if (!pid) {
        link_replace(socket);
        job_forget();
        serve();
    }
    if (socket >= 0)
        close(socket);
    link_send(SAY_DONE, 0, id, &done, sizeof done, NULL, 0);
}

void leave(int code) {
    const struct timespec pause = {.tv_nsec = 2000000};
    for (int looks = 0; tree_branch && looks < MOST_LOOKS && !job_abandon(); looks++)
        nanosleep(&pause, NULL);
    _exit(code);
}

/* Python or tilt-host is gone. */
static void orphaned(void) {
    while (WITHOUT(LEASH))
        pause();
    leave(0);
}

static void handle(const struct tilt_frame *frame, char *payload) {
    switch (frame->type) {
    case ASK_EXEC:
        job_start(frame->id, payload, frame->size);
        break;
    case ASK_WRITE:
        answer_write(frame->id, payload, frame->size);
        break;
    case ASK_READ:
        answer_about(frame->id, payload, frame->size, file_read);
        break;
    case ASK_LIST:
        answer_about(frame->id, payload, frame->size, file_list);
        break;
    case ASK_STAT:
        answer_about(frame->id, payload, frame->size, answer_stat);
        break;
    case ASK_MKDIR:
        answer_about(frame->id, payload, frame->size, answer_mkdir);
        break;
    case ASK_STATS:
        answer_stats(frame->id);
        break;
    case ASK_SURVEY:
        answer_survey(frame->id);
        break;
    case ASK_CONNECT:
        answer_port(frame->id, payload, frame->size, port_connect);
        break;
    case ASK_LISTEN:
        answer_port(frame->id, payload, frame->size, port_listen);
        break;
    case ASK_BRANCH:
        answer_branch(frame->id);
        break;
    case ASK_HOLD:
        answer_done(frame->id, job_hold());
        break;
    case ASK_GO_ON:
        answer_done(frame->id, job_go_on());
        break;
    case ASK_KILL:
        job_kill();
        break;
    default:
        leave(2);
    }
}

static int open_signals(void) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void prepare(const struct init_start *start) {
    int error;
    payload_nofile = start->nofile;
    payload_file_bytes = start->file_bytes;
    job_cpu_milli = start->cpu_milli;
    if ((error = rights_drop()))
        die(STEP_RIGHTS, error);
    if ((error = limits_set(payload_nofile, payload_file_bytes)))
        die(STEP_LIMITS, error);
    if ((error = file_open_roots()))
        die(STEP_FILES, error);
    if ((error = seccomp_install()))
        die(STEP_SECCOMP, error);
}

static void serve(void) {
    for (;;) {
        struct pollfd fds[8] = {
            {.fd = INIT_SOCKET, .events = (short)(POLLIN | (link_blocked ? POLLOUT : 0))},
            {.fd = INIT_LEASH, .events = POLLIN},
            {.fd = signals, .events = POLLIN},
        };
        int count = 3 + job_poll(fds + 3);
        int64_t wait = job_timeout_ns();
        struct timespec limit = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
        if (ppoll(fds, (nfds_t)count, wait < 0 ? NULL : &limit, NULL) < 0 && errno != EINTR)
            leave(3);
        struct signalfd_siginfo seen;
        if (fds[2].revents && read(signals, &seen, sizeof seen) > 0)
            job_turn();                 /* first: what is asked about processes next must not count the dead */
        if (fds[1].revents)
            orphaned();
        if (fds[0].revents & POLLOUT)
            link_flush();
        if ((fds[0].revents & (POLLIN | POLLHUP | POLLERR)) && !link_receive(handle))
            orphaned();
        job_turn();
    }
}

void init_run(const struct init_start *start) {
    int error;
    prctl(PR_SET_NAME, "tilt-init", 0, 0, 0);
    joined = start->arguments;
    status = (struct tilt_status){.cell = start->cell, .life = start->life};
    prepare(start);
    signals = open_signals();
    if (signals < 0)
        die(STEP_DESCRIPTORS, errno);
    if (joined && (error = join_call(start->arguments[2])))
        die(STEP_JOIN, error);
    if (joined)
        join_hide(start->arguments);
    status.step = STEP_READY;
    if (write(INIT_STATUS, &status, sizeof status) != sizeof status)
        _exit(1);
    close(INIT_STATUS);
    serve();
}
