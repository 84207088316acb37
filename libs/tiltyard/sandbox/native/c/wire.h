/* What Python, tilt-host and tilt-init say to one another. Native byte order; mirrored by native/wire.py.
 *
 * Python <-> tilt-host: fixed structs over a SOCK_SEQPACKET socket; a BOX event carries the box's socket. A last packet of
 * TILT_REASON bytes is text: why tilt-host ends.
 * Python <-> tilt-init: frames (header, then `size` bytes) over a SOCK_STREAM pair; an EXEC frame may carry descriptors.
 */
#ifndef TILT_WIRE_H
#define TILT_WIRE_H

#include "without.h"
#include <stdint.h>

enum { TILT_DIGEST = 64, TILT_MAX_FRAME = 16 << 20, TILT_MAX_FDS = 13, TILT_FIRST_FD = 3, TILT_LAST_FD = 15, TILT_REASON = 512 };

/* --- Python -> tilt-host ------------------------------------------------------------------------------- */
enum tilt_request { TILT_POOL = 1, TILT_KILL = 2, TILT_STATS = 3, TILT_FREEZE = 4 };

struct tilt_pool {          /* keep `size` boxes alive, made from one image under one set of limits */
    uint32_t op, size, starting, pids;
    uint64_t memory, disk, inodes, file_bytes;   /* bytes, bytes, count, bytes */
    uint32_t cpu_milli, nofile, reuses, pad;     /* reuses: boxes that one cell may serve, 0: any number */
    char image[TILT_DIGEST];
};

struct tilt_kill {          /* destroy one box; `life` guards against a number that was used again */
    uint32_t op, cell, life, retire;             /* retire: the cell is not used again */
};

struct tilt_freeze {        /* stop a box's payload, or let it go on; answered by TILT_FROZEN */
    uint32_t op, cell, life, on;
};

/* --- tilt-host -> Python ------------------------------------------------------------------------------- */
enum tilt_event_kind {
    TILT_BOX = 1,      /* a ready box; its socket comes with the message */
    TILT_LOST = 2,     /* a box died although nobody asked */
    TILT_FAILED = 3,   /* a box could not be made: step, error */
    TILT_COUNTS = 4,   /* answer to TILT_STATS */
    TILT_REFUSED = 5,  /* a request that makes no sense: error */
    TILT_FROZEN = 6,   /* answer to TILT_FREEZE: error */
};

struct tilt_event {
    uint32_t op, cell, life;
    int32_t status;             /* wait status of the box's PID 1 */
    int32_t error, step;
    uint32_t oom, alive, ready, cells;
    uint64_t created, destroyed, failed, made_ns;   /* made_ns: how long making this box took */
};

/* Steps of making a box, in order: what a TILT_FAILED event names. Mirrored by wire.STEPS. */
enum tilt_step {
    STEP_READY, STEP_CELL, STEP_CLONE, STEP_CGROUP, STEP_METERS, STEP_NETNS, STEP_TMPFS, STEP_LAYERS, STEP_OVERLAY, STEP_USR,
    STEP_PROC, STEP_DEV, STEP_ROOT, STEP_HOSTNAME, STEP_USERNS, STEP_IDENTITY, STEP_DESCRIPTORS, STEP_EXEC, STEP_RIGHTS,
    STEP_SECCOMP, STEP_LIMITS, STEP_FILES, STEP_JOIN,
};
enum { EXIT_JOIN = 64 };    /* the exit status of a tilt-init in a container is this and the step that failed */

struct tilt_status {        /* child -> tilt-host, over a packet pipe */
    uint32_t cell, life, step;
    int32_t error;
};

/* --- Descriptors and what else tilt-init starts with --------------------------------------------------- */
enum {
    INIT_SOCKET, INIT_STATUS, INIT_LEASH, INIT_CPU, INIT_PEAK, INIT_OOM, INIT_PIDS, INIT_THROTTLE, INIT_MEMORY, INIT_ZYGOTE, INIT_FDS,
    INIT_METERS = INIT_MEMORY - INIT_CPU + 1,
};

struct init_start {
    uint64_t nofile, file_bytes, cpu_milli;
    uint32_t cell, life;        /* with which it tells tilt-host that it is ready */
    char **arguments;           /* in somebody else's container: its command line (main.c), NULL in a box of tilt-host */
};
void init_run(const struct init_start *start) __attribute__((noreturn));

/* --- Python <-> tilt-init ------------------------------------------------------------------------------ */
struct tilt_frame {
    uint32_t size;              /* bytes that follow */
    uint8_t type, stream;       /* stream: 1 stdout, 2 stderr */
    uint16_t pad;
    uint32_t id;                /* chosen by Python, echoed */
};

enum tilt_ask {
    ASK_EXEC = 1, ASK_WRITE = 2, ASK_READ = 3, ASK_KILL = 4,
    ASK_LIST = 5,               /* tilt_read; answered by tilt_done (size: where to go on, 0 at the end) and tilt_entry records */
    ASK_STAT = 6,               /* tilt_read; answered by tilt_done and one tilt_entry */
    ASK_MKDIR = 7,              /* tilt_read, whose size is the mode */
    ASK_STATS = 8,              /* answered by tilt_done and tilt_stats */
    ASK_SURVEY = 9,             /* answered by tilt_done and text: what a pristine box would show too */
    ASK_CONNECT = 10,           /* tilt_connect with one descriptor, over which the connected socket is sent */
    ASK_BRANCH = 11,            /* one descriptor: a socket on which a branch of tilt-init serves one more command */
    ASK_LISTEN = 12,            /* as ASK_CONNECT; what is sent is a socket that listens */
    ASK_HOLD = 13,              /* the command's clocks stand still; EAGAIN while it is being started */
    ASK_GO_ON = 14,             /* they go on */
};
enum tilt_say { SAY_OUTPUT = 1, SAY_EXIT = 2, SAY_DONE = 3 };

struct tilt_exec {
    /* then: u32 number[nfds]; argc + envc + 1 strings ending in NUL (argv, env, cwd); nfiles x (tilt_file, path NUL, data); stdin */
    uint64_t cpu_ns, wall_ns, idle_ns, output_bytes;   /* idle_ns 0: none */
    uint32_t argc, envc, nfds, nfiles, stdin_size, flags;
};
enum tilt_exec_flag {
    EXEC_STREAM = 1,
    EXEC_WARM = 2,              /* argv is python3 -I -S SCRIPT..., so a copy of a warm one may serve */
    EXEC_TTY = 4,               /* the first two descriptors are a terminal's master and slave; what comes out of it is stdout */
};

struct tilt_file {
    uint32_t root, mode, append, path_size, data_size, pad;   /* root: 0 /box, 1 /tmp; path_size counts the NUL */
};

struct tilt_read {          /* then: path NUL */
    uint64_t offset;
    uint32_t root, size;
};

struct tilt_done {          /* answer to WRITE and READ; READ's bytes follow */
    int32_t error, pad;
    uint64_t size;              /* READ: size of the whole file */
};

struct tilt_entry {         /* then: name, name_size bytes without NUL (none for STAT) */
    uint64_t size;
    int64_t mtime_ns;
    uint32_t mode, name_size;
};

struct tilt_connect {
    uint32_t family, port;      /* 4 or 6; loopback of the box */
};

struct tilt_stats {         /* nanoseconds, bytes, counts; since the box began */
    uint64_t cpu_ns, throttled_ns, memory, peak, disk_used, disk, inodes_used, inodes;
    uint32_t pids, oom_kills, pids_hits, branches;
};

enum tilt_reason {
    REASON_EXITED, REASON_SIGNALLED, REASON_CPU, REASON_WALL, REASON_IDLE, REASON_OUTPUT, REASON_KILLED, REASON_SPAWN, REASON_FILE,
};
enum tilt_flag { FLAG_OUT_CUT = 1, FLAG_ERR_CUT = 2, FLAG_DISK_FULL = 4, FLAG_STUCK = 8 };

struct tilt_exit {
    uint32_t reason, flags;
    int32_t code, signal, error;        /* error: errno of REASON_SPAWN and REASON_FILE */
    uint32_t oom_kills, pids_hits, left;    /* left: processes that outlived the command and were killed */
    uint64_t cpu_ns, wall_ns, peak_bytes, throttled_ns, waited_ns;
};

/* --- tilt-init -> the warm interpreter ------------------------------------------------------------------ */
struct tilt_warm {          /* then: argc + envc + 1 strings ending in NUL (script and its arguments, env, cwd) */
    uint64_t cpu_ns, nofile, file_bytes;
    uint32_t argc, envc, nfds, fd_numbers[TILT_MAX_FDS];
};      /* descriptors with it: stdin, stdout, stderr, fault, then nfds */

/* --- a payload in the making -> tilt-init, over its fault pipe, which closes when the payload runs ------- */
enum { FAULT_PID = 1, FAULT_EXEC = 2, FAULT_WARM = 3 };     /* its pid; errno of a command that cannot start; errno of our own failure */
struct tilt_fault {
    int32_t kind, value;
};

#endif
