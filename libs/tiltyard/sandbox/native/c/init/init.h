/* tilt-init: PID 1 of a box. Shared declarations of its parts. */
#ifndef TILT_INIT_H
#define TILT_INIT_H

#include "../wire.h"
#include <stdbool.h>
#include <poll.h>
#include <stddef.h>
#include <sys/types.h>

enum { PAYLOAD_ID = 1000, RUNS_AS = WITHOUT(UIDS) ? 0 : PAYLOAD_ID, STREAM_CAP = 64 << 10, MIN_HIGH_FD = 64 };

/* meter.c: what the box's cgroup counted */
uint64_t meter_cpu_ns(void);
uint64_t meter_peak_bytes(void);
uint64_t meter_oom_kills(void);
uint64_t meter_pids_hits(void);
uint64_t meter_throttled_ns(void);
uint64_t meter_waited_ns(void);
uint64_t meter_memory_bytes(void);
void meter_reset_peak(void);

/* rights.c: what PID 1 gives up before it listens */
int rights_drop(void);
int bounding_set_empty(void);
int seccomp_install(void);
extern uint64_t payload_nofile, payload_file_bytes;
int limits_set(uint64_t nofile, uint64_t file_bytes);

/* file.c: files of the box, touched as the payload's uid, never through a symlink */
int file_open_roots(void);
int file_write(const struct tilt_file *how, const char *path, const char *data);
int file_read(const struct tilt_read *how, const char *path, char *into, size_t *got, uint64_t *size);
int file_list(const struct tilt_read *how, const char *path, char *into, size_t *got, uint64_t *next);
int file_stat(const struct tilt_read *how, const char *path, char *into, size_t *got);
int file_mkdir(const struct tilt_read *how, const char *path);

/* state.c: what the box holds now */
bool disk_full(void);
void state_stats(struct tilt_stats *stats);
size_t state_survey(char *into, size_t room);

/* port.c: a socket on the box's loopback, handed out: a connection to a server inside, or a listener */
int port_connect(const struct tilt_connect *how, int carrier);
int port_listen(const struct tilt_connect *how, int carrier);

/* tree.c: whose a process is. PID 1 owns whatever is below no branch; a branch owns what is below itself */
extern bool tree_branch;        /* this process is a branch */
extern uint32_t tree_branches;  /* living branches of this PID 1 */
int tree_grow(pid_t *pid);      /* fork a branch: *pid is 0 in it */
bool tree_forget(pid_t pid, uint64_t cpu_ns);       /* a child died; true: it was a branch */
bool tree_kill(void);           /* SIGKILL to all that is ours; true: nothing of ours was found */
uint64_t tree_cpu_ns(void);     /* PID 1: what all branches used; a branch: what its tree used. Never falls */

/* parse.c: the only code that looks inside a frame; pure, so that it can be fuzzed */
struct exec_plan {
    struct tilt_exec how;
    uint32_t fd_numbers[TILT_MAX_FDS];
    char **argv, **env;
    const char *cwd;
    const char *files;          /* nfiles records, already checked */
    const char *stdin_data;
};
int parse_exec(const char *frame, size_t size, struct exec_plan *plan);
int parse_file(const char **cursor, const char *end, struct tilt_file *how, const char **path, const char **data);
int parse_read(const char *frame, size_t size, struct tilt_read *how, const char **path);
int parse_connect(const char *frame, size_t size, struct tilt_connect *how);
void exec_plan_free(struct exec_plan *plan);

/* spawn.c: one payload process */
struct spawned {
    pid_t pid;                  /* 0: a copy of the warm interpreter, which will tell */
    int in, out, err, fault;    /* our ends; fault carries errno when exec fails, closes when it succeeds; in is -1 without stdin */
};
int spawn(const struct exec_plan *plan, const int *fds, struct spawned *child);

/* join.c: PID 1 of a container that tilt-host did not make */
int join_prepare(void);
int join_call(const char *path);
void join_hide(char **arguments);

/* link.c: the socket to Python */
extern bool link_blocked;       /* bytes are waiting for the socket */
void link_hold(void);
void link_flush(void);
void link_send(uint8_t type, uint8_t stream, uint32_t id, const void *head, size_t head_size, const void *data, size_t data_size);
bool link_receive(void (*handle)(const struct tilt_frame *, char *payload));
int link_take_fds(uint32_t count, int *into);
void link_replace(int socket);  /* a branch: from now on this is the link */

/* input.c: what the command's stdin is still to get */
void input_take(const char *data, size_t length);
void input_feed(int *pipe);
void input_drop(void);

/* job.c: the command that runs */
bool job_running(void);
void job_start(uint32_t id, const char *frame, size_t size);
void job_kill(void);
void job_forget(void);          /* a branch: the running command is PID 1's */
int job_hold(void);             /* no clock runs; EAGAIN while the command is being started */
int job_go_on(void);
bool job_abandon(void);         /* a branch without a listener: kill all that is ours; true: it is gone */
int job_poll(struct pollfd *into);
void job_turn(void);
int64_t job_timeout_ns(void);
extern uint64_t job_cpu_milli;     /* CPUs that the box may use, in thousandths */

uint64_t now_ns(void);
void leave(int code) __attribute__((noreturn));         /* the end of PID 1, or of a branch, which first kills all that is its own */
void die(int step, int error) __attribute__((noreturn));

#endif
