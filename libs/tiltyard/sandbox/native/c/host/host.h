/* tilt-host: the one privileged program. Shared declarations of its parts. */
#ifndef TILT_HOST_H
#define TILT_HOST_H

#include "../wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { MAX_CELLS = 32768, ID_BASE = 1900000000, PAYLOAD_ID = 1000, CLEAN_BYTES = 8 << 20 };

struct limits {
    uint64_t memory, disk, inodes, file_bytes;
    uint32_t pids, cpu_milli, nofile;
};

/* cell.c: a number that no other process of this host holds, with its ids and namespaces */
struct cell {
    uint32_t number;            /* also names its cgroup and its two uids */
    int userns, route;          /* route: a netlink socket inside its network namespace */
};
int cells_open(void);
int cell_take(struct cell *cell);
int cell_renew(struct cell *cell);
int cell_enter_netns(const struct cell *cell);
void cell_lend_userns(struct cell *cell);
void cell_regain_userns(struct cell *cell, pid_t dead);
void cell_free(struct cell *cell);
void cells_sweep(void);
uid_t cell_payload_uid(const struct cell *cell);
uid_t cell_init_uid(const struct cell *cell);

/* cgroup.c: memory, pids, cpu and cpuacct, each on v1 or v2, wherever this host has it */
int cgroups_open(void);
int cgroup_make(uint32_t cell, const struct limits *limits);
int cgroup_remove(uint32_t cell);
bool cgroup_clean(uint32_t cell);
int cgroup_enter(uint32_t cell);
void cgroup_meters(uint32_t cell, int meters[INIT_METERS]);
uint64_t cgroup_oom_kills(uint32_t cell);
int cgroup_folders(int *into);
void cgroup_each(void (*visit)(uint32_t cell));
const char *cgroups_missing(void);
void cgroups_report(void);

int cgroup_remove_folder(int folder, const char *name);
void cgroup_processes(uint32_t cell, char *into, size_t size);

/* freezer.c: the payload of a cell at rest */
enum freezer_kind { FREEZER_NESTED, FREEZER_BESIDE, FREEZER_V1 };       /* cgroup2, below the cell or beside its v1 folders; v1's own */
void freezer_use(int dir, enum freezer_kind kind);
int freezer_freeze(uint32_t cell, uid_t payload);
int freezer_thaw(uint32_t cell);
void freezer_let_die(uint32_t cell);
int freezer_remove(uint32_t cell);

/* root.c: the empty root that boxes are cloned from */
int root_enter(const char *store);
extern int proc_dir;            /* the host's /proc, kept open */
extern const char *proc_masks[], *proc_folder_masks[];

/* box.c: a box in the making */
struct box {
    struct cell cell;
    uint32_t life, uses;
    bool retire;                /* its cell is given up before the next box */
    bool rested;                /* it was frozen, and may be */
    pid_t pid;
    int socket;                 /* Python's end until it is sent, then -1 */
    uint64_t oom_before, started_ns, made_ns;       /* made_ns: from clone until tilt-init listened */
    enum { BOX_NONE, BOX_STARTING, BOX_READY, BOX_LENT, BOX_DYING } state;
};
struct recipe {
    struct limits limits;
    char image[TILT_DIGEST + 1];
    uint32_t reuses;            /* boxes that one cell may serve, 0: any number */
    int status, leash, zygote;
};
int box_open(void);
int box_clone(struct box *box, const struct recipe *recipe);
int box_borrow_usr(const char *image);

/* name.c: the program itself, and what it is called */
int name_seal(char **arguments, int programs);
void name_keep(char **arguments);
void name_forget(void);

/* warm.c: the interpreter that is copied into boxes */
int warm_load(int programs);
int warm_start(const char *image);
void warm_stop(void);

int write_at(int dir, const char *path, const char *text);
ssize_t read_at(int dir, const char *path, char *into, size_t size);

#endif
