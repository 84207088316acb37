/* The boxes of one pool: how many live, which cell each uses, what becomes of it.
 *
 * Guarantees: a cell goes to its next box only after the kernel has reported the death of the last one's PID 1, which it does
 * only when every process of that PID namespace is gone; cells rest in a queue, so that memory that is still being given
 * back is not charged to the next user. */
#define _GNU_SOURCE
#include "fleet.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SPARE = 4, NOBODY = -1, PATIENCE = 100 };

struct fleet fleet;

static struct box *boxes;                   /* one a cell that is held */
static uint32_t box_count, box_room;
static int32_t *slot_of_pid, *slot_of_cell;
static uint32_t *resting, rest_head, rest_size;     /* a ring of slots without a box */
static uint32_t last_life, refusals;        /* refusals: how often the longest rested cell was not clean yet */

static long most_pids(void) {
    char text[32];
    long most = read_at(proc_dir, "sys/kernel/pid_max", text, sizeof text) > 0 ? atol(text) : 0;
    return most > 0 ? most : 4194304;
}

/* Zeros that no child has: what tilt-host knows of other boxes is not in any tilt-init's memory. */
static void *table(size_t count, size_t size) {
    void *made = mmap(NULL, count * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return made == MAP_FAILED || madvise(made, count * size, MADV_DONTFORK) ? NULL : made;
}

int fleet_open(const struct tilt_pool *pool) {
    fleet.size = pool->size;
    fleet.starting_most = pool->starting ? pool->starting : 1;
    box_room = pool->size + SPARE;
    boxes = table(box_room, sizeof *boxes);
    resting = table(box_room, sizeof *resting);
    slot_of_pid = table((size_t)most_pids() + 1, sizeof *slot_of_pid);      /* slot + 1; 0: nobody's */
    slot_of_cell = table(MAX_CELLS, sizeof *slot_of_cell);
    if (!boxes || !resting || !slot_of_pid || !slot_of_cell)
        return ENOMEM;
    memset(slot_of_cell, 0xff, MAX_CELLS * sizeof *slot_of_cell);
    return 0;
}

static void rest(uint32_t slot) {
    resting[(rest_head + rest_size++) % box_room] = slot;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int new_cell(uint32_t *slot) {
    struct box *box = &boxes[box_count];
    int error = cell_take(&box->cell);
    if (!error && (error = cgroup_make(box->cell.number, &fleet.recipe.limits)))
        cell_free(&box->cell);
    if (error)
        return error;
    slot_of_cell[box->cell.number] = (int32_t)box_count;
    *slot = box_count++;
    return 0;
}

/* Another cell in the place of one that drifted or has served enough boxes. */
static int replace_cell(uint32_t slot) {
    struct box *box = &boxes[slot];
    slot_of_cell[box->cell.number] = NOBODY;
    cell_free(&box->cell);
    int error = cell_take(&box->cell) ?: cgroup_make(box->cell.number, &fleet.recipe.limits);
    if (error)
        return error;                   /* the slot is lost: it rests no more */
    slot_of_cell[box->cell.number] = (int32_t)slot;
    box->uses = 0;
    box->retire = false;
    return 0;
}

static int rested_cell(uint32_t *slot) {
    uint32_t first = resting[rest_head];
    struct box *box = &boxes[first];
    int error = 0;
    if (!cgroup_clean(box->cell.number)) {
        if (++refusals < PATIENCE)
            return RESTING;
        if ((error = cgroup_remove(box->cell.number) ?: cgroup_make(box->cell.number, &fleet.recipe.limits)))
            return error;
    }
    refusals = 0;
    rest_head = (rest_head + 1) % box_room;
    rest_size--;
    *slot = first;
    if (box->retire || (fleet.recipe.reuses && box->uses >= fleet.recipe.reuses))
        return replace_cell(first);
    if ((error = cell_renew(&box->cell)))
        rest(first);
    return error;
}

/* A cell for the next box: one that has rested, else a new one; RESTING when there is none. */
static int find_cell(uint32_t *slot) {
    bool room = box_count < box_room;
    if (!rest_size || (room && rest_size < SPARE))
        return room ? new_cell(slot) : RESTING;
    int error = rested_cell(slot);
    return error == RESTING && room ? new_cell(slot) : error;
}

int fleet_make(enum tilt_step *step) {
    uint32_t slot;
    uint64_t started = now_ns();
    *step = STEP_CELL;
    int error = find_cell(&slot);
    if (error)
        return error;
    struct box *box = &boxes[slot];
    box->life = ++last_life;
    box->uses++;
    box->started_ns = started;
    *step = STEP_CLONE;
    if ((error = box_clone(box, &fleet.recipe))) {
        rest(slot);
        return error;
    }
    box->state = BOX_STARTING;
    slot_of_pid[box->pid] = (int32_t)slot + 1;
    fleet.alive++;
    fleet.starting++;
    return 0;
}

struct box *fleet_box(uint32_t cell, uint32_t life) {
    int32_t slot = cell < MAX_CELLS ? slot_of_cell[cell] : NOBODY;
    return slot != NOBODY && boxes[slot].life == life && boxes[slot].state != BOX_NONE ? &boxes[slot] : NULL;
}

void fleet_ready(struct box *box) {
    if (box->state != BOX_STARTING)
        return;
    box->state = BOX_READY;
    cell_lend_userns(&box->cell);
    box->made_ns = now_ns() - box->started_ns;
    fleet.starting--;
    fleet.ready++;
    fleet.created++;
}

void fleet_lent(struct box *box) {
    close(box->socket);
    box->socket = -1;
    box->state = BOX_LENT;
    fleet.ready--;
}

struct box *fleet_next_ready(void) {
    static uint32_t at;
    for (uint32_t seen = 0; fleet.ready && seen < box_count; seen++, at++)
        if (boxes[at % box_count].state == BOX_READY)
            return &boxes[at % box_count];
    return NULL;
}

void fleet_kill(struct box *box) {
    if (box->state == BOX_STARTING)
        fleet.starting--;
    if (box->state == BOX_READY)
        fleet.ready--;
    box->state = BOX_DYING;
    kill(box->pid, SIGKILL);
    if (box->rested)
        freezer_let_die(box->cell.number);
}

/* The box whose PID 1 died, by then without any process; its cell rests. NULL when no child has died. */
struct box *fleet_reap(struct box *before, int *status) {
    siginfo_t dead = {0};
    while (!waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) && dead.si_pid && !slot_of_pid[dead.si_pid])
        waitpid(dead.si_pid, NULL, WNOHANG);
    pid_t pid = dead.si_pid;
    if (!pid || !slot_of_pid[pid])
        return NULL;
    uint32_t slot = (uint32_t)slot_of_pid[pid] - 1;
    struct box *box = &boxes[slot];
    cell_regain_userns(&box->cell, pid);
    waitpid(pid, status, 0);
    *before = *box;
    slot_of_pid[pid] = 0;
    if (box->state == BOX_STARTING)
        fleet.starting--;
    if (box->state == BOX_READY)
        fleet.ready--;
    if (box->socket >= 0)
        close(box->socket);
    box->socket = -1;
    box->state = BOX_NONE;
    if (box->rested)
        (void)freezer_remove(box->cell.number);
    box->rested = false;
    fleet.alive--;
    fleet.destroyed++;
    rest(slot);
    return box;
}

void fleet_close(void) {
    warm_stop();
    for (uint32_t slot = 0; slot < box_count; slot++)
        if (boxes[slot].state != BOX_NONE)
            fleet_kill(&boxes[slot]);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    for (uint32_t slot = 0; slot < box_count; slot++)
        cell_free(&boxes[slot].cell);
}
