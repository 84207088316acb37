/* The boxes of one pool. */
#ifndef TILT_FLEET_H
#define TILT_FLEET_H

#include "host.h"

struct fleet {
    struct recipe recipe;
    uint32_t size, starting_most;           /* how many to keep alive, how many may start at once */
    uint32_t alive, starting, ready;
    uint64_t created, destroyed, failed;
};
extern struct fleet fleet;

int fleet_open(const struct tilt_pool *pool);
enum { RESTING = -1 };          /* of fleet_make: every free cell still rests */
int fleet_make(enum tilt_step *step);
struct box *fleet_box(uint32_t cell, uint32_t life);
struct box *fleet_next_ready(void);
struct box *fleet_reap(struct box *before, int *status);
void fleet_ready(struct box *box);
void fleet_lent(struct box *box);
void fleet_kill(struct box *box);
void fleet_close(void);

#endif
