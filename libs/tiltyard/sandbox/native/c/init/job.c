/* The command that runs: its output, its limits, its end. One at a time here; each branch runs one beside it.
 *
 * Guarantees: when the end is reported, no process of the command lives. Without branches that is every process of the box but
 * PID 1 (kill(-1) reaches all of the namespace under one lock, so a fork cannot slip past it); with them see tree.c.
 * The time limits hold on this clock, not on data arriving. */
#define _GNU_SOURCE
#include "init.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum phase { IDLE, RUNNING, REAPING };
enum { CHECK_NS = 5000000, STUCK_S = 5 };
static const uint64_t SECOND = 1000000000u, IDLE_CPU_NS = 10000000u;

struct stream {
    int fd;
    uint64_t total;             /* bytes that the payload wrote, capped */
    uint32_t used;
    bool cut;
    char buffer[STREAM_CAP];
};

struct base {
    uint64_t cpu, oom, pids, throttled;
};

static struct {
    enum phase phase;
    uint32_t id;
    struct tilt_exec how;
    struct spawned child;
    struct base base;
    struct tilt_exit report;
    uint64_t started, ended, quiet_since, quiet_cpu, next_cpu_check;
    bool main_gone, childless;
    uint32_t clear_looks;       /* with branches: how often in a row nothing of the command was found */
} job = {.child = {.in = -1, .out = -1, .err = -1, .fault = -1}};

static struct stream streams[2] = {{.fd = -1}, {.fd = -1}};
static uint64_t most_cpu_ns;            /* what used_cpu_ns has answered */
static uint64_t held_since;             /* the box rests: no clock runs; 0: it does not */
static bool served;                     /* a command has ended here; a branch then goes */
uint64_t job_cpu_milli = 1000;

bool job_running(void) {
    return job.phase != IDLE;
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void report_failure(uint32_t id, enum tilt_reason reason, int error) {
    struct tilt_exit report = {.reason = reason, .error = error, .code = -1};
    link_send(SAY_EXIT, 0, id, &report, sizeof report, NULL, 0);
    served = true;
}

/* CPU time of the box that no branch used; in a branch, of its tree. Never falls. */
static uint64_t used_cpu_ns(void) {
    uint64_t all = tree_branch ? 0 : meter_cpu_ns(), trees = tree_cpu_ns();
    uint64_t used = tree_branch ? trees : all > trees ? all - trees : 0;
    most_cpu_ns = used > most_cpu_ns ? used : most_cpu_ns;
    return most_cpu_ns;
}

/* Every process of the command gets SIGKILL; the first reason stands. */
static void stop(enum tilt_reason reason) {
    if (job.phase != RUNNING)
        return;
    job.report.reason = reason;
    if (reason == REASON_WALL || reason == REASON_IDLE)
        job.report.waited_ns = meter_waited_ns();
    job.phase = REAPING;
    job.ended = now_ns();
    job.clear_looks = 0;
    tree_kill();
}

void job_kill(void) {
    stop(REASON_KILLED);
}

static int write_files(const struct exec_plan *plan) {
    const char *cursor = plan->files, *path, *data;
    struct tilt_file file;
    int error = 0;
    for (uint32_t i = 0; !error && i < plan->how.nfiles; i++)
        error = parse_file(&cursor, plan->stdin_data, &file, &path, &data) ?: file_write(&file, path, data);
    return error;
}

static void begin(uint32_t id, const struct exec_plan *plan) {
    job.id = id;
    job.how = plan->how;
    memset(&job.report, 0, sizeof job.report);
    job.main_gone = job.childless = false;
    job.base = (struct base){used_cpu_ns(), meter_oom_kills(), meter_pids_hits(), meter_throttled_ns()};
    meter_reset_peak();
    job.started = job.quiet_since = now_ns();
    job.quiet_cpu = 0;
    job.next_cpu_check = job.started + job.how.cpu_ns * 1000 / job_cpu_milli;
}

static void attach(const struct exec_plan *plan) {
    for (int i = 0; i < 2; i++) {
        streams[i].fd = i ? job.child.err : job.child.out;
        streams[i].total = streams[i].used = 0;
        streams[i].cut = false;
    }
    input_take(plan->stdin_data, plan->how.stdin_size);
    job.phase = RUNNING;
}

void job_start(uint32_t id, const char *frame, size_t size) {
    struct exec_plan plan;
    int fds[TILT_MAX_FDS], error = parse_exec(frame, size, &plan);
    if (!error && (error = link_take_fds(plan.how.nfds, fds)))
        exec_plan_free(&plan);
    if (error) {
        report_failure(id, REASON_SPAWN, error);
        return;
    }
    if (job_running())
        report_failure(id, REASON_SPAWN, EBUSY);
    else if ((error = write_files(&plan)))
        report_failure(id, REASON_FILE, error);
    else {
        begin(id, &plan);
        if ((error = spawn(&plan, fds, &job.child)))
            report_failure(id, REASON_SPAWN, error);
        else
            attach(&plan);
    }
    for (uint32_t i = 0; i < plan.how.nfds; i++)
        close(fds[i]);
    exec_plan_free(&plan);
}

static void flush_stream(int which) {
    struct stream *stream = &streams[which];
    if (stream->used)
        link_send(SAY_OUTPUT, (uint8_t)(which + 1), job.id, NULL, 0, stream->buffer, stream->used);
    stream->used = 0;
}

/* Takes what the payload has written, up to the cap; one byte more ends the command. */
static void drain(int which) {
    struct stream *stream = &streams[which];
    if (WITHOUT(BOTH_STREAMS) && which && streams[0].fd >= 0)
        return;
    while (stream->fd >= 0 && !link_blocked) {
        ssize_t got = read(stream->fd, stream->buffer + stream->used, STREAM_CAP - stream->used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno != EIO)
            break;
        if (got <= 0) {             /* EIO: nobody holds the terminal any more */
            close_fd(&stream->fd);
            break;
        }
        job.quiet_since = now_ns();
        uint64_t room = WITHOUT(OUTPUT_CAP) ? UINT64_MAX >> 1 : job.how.output_bytes - stream->total;
        uint32_t kept = (uint64_t)got > room ? (uint32_t)room : (uint32_t)got;
        stream->total += kept;
        stream->used += kept;
        if ((uint64_t)got > room) {
            stream->cut = true;
            close_fd(&stream->fd);
            stop(REASON_OUTPUT);
        }
        if (stream->used == STREAM_CAP)
            flush_stream(which);
    }
    if (job.how.flags & EXEC_STREAM && !link_blocked)
        flush_stream(which);
}

/* What the payload says before it runs: its pid when it is a copy of the warm interpreter, or why it cannot start. */
static void hear_fault(void) {
    struct tilt_fault said;
    ssize_t got;
    while (job.child.fault >= 0 && (got = read(job.child.fault, &said, sizeof said)) == sizeof said) {
        if (said.kind == FAULT_PID) {
            job.child.pid = said.value;
            if (job.phase == REAPING)           /* it came into the box after the end was decided */
                tree_kill();
            continue;
        }
        job.report.error = said.kind == FAULT_WARM ? EBADMSG : said.value;
        stop(REASON_SPAWN);
        break;
    }
    if (job.child.fault >= 0 && (got >= 0 || errno != EAGAIN)) {
        if (!got && !job.child.pid) {           /* the warm interpreter died with our request */
            job.report.error = EBADMSG;
            stop(REASON_SPAWN);
        }
        close_fd(&job.child.fault);
    }
}

static void note_main(int status) {
    job.main_gone = true;
    if (job.phase == RUNNING) {
        hear_fault();
        stop(WIFSIGNALED(status) ? REASON_SIGNALLED : REASON_EXITED);
    }
    job.report.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    job.report.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* A branch that was killed from outside leaves orphans; nobody may own them. */
static void note_branch(void) {
    if (job.phase == IDLE)
        tree_kill();
}

static void reap(void) {
    int status;
    pid_t pid;
    struct rusage used;
    while ((pid = wait4(WITHOUT(REAPING) && job.child.pid > 0 ? job.child.pid : -1, &status, WNOHANG, &used)) > 0) {
        if (!job.child.pid)
            hear_fault();
        uint64_t cpu = (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * SECOND +
                       (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000u;
        if (tree_forget(pid, cpu))
            note_branch();
        else if ((pid == job.child.pid || WITHOUT(MAIN_PID)) && !job.main_gone)
            note_main(status);
        else if (job.main_gone)
            job.report.left++;
    }
    /* A copy of the warm interpreter that has not told its pid may still be on its way into the box. */
    job.childless = (pid < 0 ? errno == ECHILD : job.clear_looks > 1) && (job.child.pid || job.child.fault < 0);
}

static void check_cpu(uint64_t now) {
    if (now < job.next_cpu_check)
        return;
    uint64_t used = used_cpu_ns() - job.base.cpu;
    if (used >= job.how.cpu_ns) {
        stop(REASON_CPU);
        return;
    }
    uint64_t wait = (job.how.cpu_ns - used) * 1000 / job_cpu_milli;
    job.next_cpu_check = now + (wait > CHECK_NS ? wait : CHECK_NS);
}

static void check_idle(uint64_t now) {
    if (!job.how.idle_ns || now < job.quiet_since + job.how.idle_ns)
        return;
    uint64_t used = used_cpu_ns() - job.base.cpu;
    if (used < job.quiet_cpu + IDLE_CPU_NS)
        stop(REASON_IDLE);
    job.quiet_since = now;
    job.quiet_cpu = used;
}

static void check_limits(void) {
    if (job.phase != RUNNING || held_since || WITHOUT(DEADLINES))
        return;
    uint64_t now = now_ns();
    check_cpu(now);
    if (now >= job.started + job.how.wall_ns)
        stop(REASON_WALL);
    check_idle(now);
}

static void finish(void) {
    struct tilt_exit *report = &job.report;
    report->wall_ns = job.ended - job.started;
    report->cpu_ns = used_cpu_ns() - job.base.cpu;
    report->peak_bytes = meter_peak_bytes();
    report->oom_kills = (uint32_t)(meter_oom_kills() - job.base.oom);
    report->pids_hits = (uint32_t)(meter_pids_hits() - job.base.pids);
    report->throttled_ns = meter_throttled_ns() - job.base.throttled;
    report->flags = (streams[0].cut ? FLAG_OUT_CUT : 0) | (streams[1].cut ? FLAG_ERR_CUT : 0) | (disk_full() ? FLAG_DISK_FULL : 0) |
                    (job.childless ? 0 : FLAG_STUCK);
    link_hold();
    flush_stream(0);
    flush_stream(1);
    link_send(SAY_EXIT, 0, job.id, report, sizeof *report, NULL, 0);
    link_flush();
    close_fd(&streams[0].fd);
    close_fd(&streams[1].fd);
    close_fd(&job.child.in);
    close_fd(&job.child.fault);
    input_drop();
    job.phase = IDLE;
    served = true;
}

/* Again: a copy of the warm interpreter can be killed only once it has become the payload, and a walk may miss a fork. */
static void kill_again(void) {
    if (!tree_branch && now_ns() > job.ended + SECOND && !WITHOUT(KILL))
        kill(-1, SIGKILL);          /* it runs away from every walk: the branches go with it */
    else
        job.clear_looks = tree_kill() ? job.clear_looks + 1 : 0;
}

void job_forget(void) {
    for (int i = 0; i < 2; i++)
        close_fd(&streams[i].fd);
    close_fd(&job.child.in);
    close_fd(&job.child.fault);
    input_drop();
    memset(&job, 0, sizeof job);
    most_cpu_ns = 0;
    served = false;
    held_since = 0;
    job.child = (struct spawned){.in = -1, .out = -1, .err = -1, .fault = -1};
}

int job_hold(void) {
    hear_fault();
    if (job.phase == RUNNING && job.child.fault >= 0)
        return EAGAIN;
    if (!held_since)
        held_since = now_ns();
    return 0;
}

int job_go_on(void) {
    uint64_t rested = held_since ? now_ns() - held_since : 0;
    job.started += rested;
    job.quiet_since += rested;
    job.next_cpu_check += rested;
    held_since = 0;
    return 0;
}

bool job_abandon(void) {
    tree_kill();
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    return waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
}

void job_turn(void) {
    if (job.phase != IDLE)
        hear_fault();
    reap();
    if (tree_branch && served && job.phase == IDLE && !link_blocked)
        leave(0);
    if (job.phase == IDLE)
        return;
    hear_fault();
    input_feed(&job.child.in);
    drain(0);
    drain(1);
    check_limits();
    if (job.phase == REAPING && !job.childless) {
        kill_again();
        reap();
    }
    bool over = job.childless || now_ns() > job.ended + STUCK_S * SECOND;
    if (job.phase == REAPING && over && !link_blocked) {
        drain(0);
        drain(1);
        if (!link_blocked)
            finish();
    }
}

int job_poll(struct pollfd *into) {
    int count = 0;
    if (job.phase == IDLE)
        return 0;
    for (int i = 0; i < 2; i++)
        if (streams[i].fd >= 0 && !link_blocked && job.phase == RUNNING && !(WITHOUT(BOTH_STREAMS) && i && streams[0].fd >= 0))
            into[count++] = (struct pollfd){.fd = streams[i].fd, .events = POLLIN};
    if (job.child.in >= 0 && job.phase == RUNNING)
        into[count++] = (struct pollfd){.fd = job.child.in, .events = POLLOUT};
    if (job.child.fault >= 0 && (job.phase == RUNNING || !job.child.pid))
        into[count++] = (struct pollfd){.fd = job.child.fault, .events = POLLIN};
    return count;
}

/* Nanoseconds until a limit must be looked at; -1: nothing to wait for. */
int64_t job_timeout_ns(void) {
    if (job.phase == IDLE || (job.phase == RUNNING && held_since))
        return -1;
    uint64_t now = now_ns(), next = job.started + job.how.wall_ns;
    if (job.phase == REAPING)
        next = now + CHECK_NS;
    else if (job.next_cpu_check < next)
        next = job.next_cpu_check;
    if (job.phase == RUNNING && job.how.idle_ns && job.quiet_since + job.how.idle_ns < next)
        next = job.quiet_since + job.how.idle_ns;
    return next > now ? (int64_t)(next - now) : 0;
}
