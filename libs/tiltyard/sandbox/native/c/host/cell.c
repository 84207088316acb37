/* Cells: numbers that belong to one process of the host at a time, and what goes with a number: a cgroup, two uids, a
 * user namespace, a network namespace.
 *
 * Guarantees: a number is held by a lock on one byte of one file, which the kernel releases when its holder dies, however it
 * dies; so no two live boxes of a host share a uid, and what a dead process left can be told from what is in use.
 * A network namespace through which a packet has gone is not used twice. */
#define _GNU_SOURCE
#include "host.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int registry = -1, own_netns = -1;
static uint32_t next_number;

uid_t cell_payload_uid(const struct cell *cell) {
    return ID_BASE + 2 * cell->number;
}

uid_t cell_init_uid(const struct cell *cell) {
    return ID_BASE + 2 * cell->number + 1;
}

int cells_open(void) {
    (void)mkdir("/run/tiltyard", 0755);
    registry = open("/run/tiltyard/cells", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    own_netns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    return registry < 0 || own_netns < 0 ? errno : 0;
}

static bool lock(uint32_t number, short type) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = number, .l_len = 1};
    return !fcntl(registry, F_OFD_SETLK, &range);
}

/* The first number at or after `number` that nobody holds, as far as one look can tell. */
static uint32_t skip_held(uint32_t number) {
    while (number < MAX_CELLS) {
        struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = MAX_CELLS - number};
        if (fcntl(registry, F_OFD_GETLK, &range) || range.l_type == F_UNLCK || range.l_start > number)
            return number;
        number = range.l_len ? (uint32_t)(range.l_start + range.l_len) : MAX_CELLS;
    }
    return number;
}

static int take_number(uint32_t *number) {
    for (uint32_t at = skip_held(next_number); at < MAX_CELLS; at = skip_held(at + 1))
        if (lock(at, F_WRLCK)) {
            next_number = at + 1;
            *number = at;
            return 0;
        }
    if (!next_number)
        return EAGAIN;
    next_number = 0;
    return take_number(number);
}

static int write_map(pid_t pid, const char *file, const struct cell *cell) {
    char path[64], map[96];
    snprintf(path, sizeof path, "%d/%s", (int)pid, file);
    snprintf(map, sizeof map, "0 %u 1\n%u %u 1\n", cell_init_uid(cell), PAYLOAD_ID, cell_payload_uid(cell));
    return write_at(proc_dir, path, map);
}

/* A user namespace in which 0 is PID 1's uid and 1000 the payload's, and no other uid exists. */
static int make_userns(struct cell *cell) {
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid < 0)
        return errno;
    if (!pid)
        for (;;)
            pause();
    int error = write_map(pid, "uid_map", cell) ?: write_map(pid, "gid_map", cell);
    char path[64];
    snprintf(path, sizeof path, "%d/ns/user", (int)pid);
    if (!error && (cell->userns = openat(proc_dir, path, O_RDONLY | O_CLOEXEC)) < 0)
        error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return error;
}

static void drop(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int raise_loopback(void) {
    struct ifreq interface = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int error = fd < 0 || ioctl(fd, SIOCSIFFLAGS, &interface) ? errno : 0;
    if (fd >= 0)
        close(fd);
    return error;
}

/* One socket in it keeps a network namespace alive, counts its packets and leads into it: a descriptor less for each cell. */
static int make_netns(struct cell *cell) {
    if (unshare(CLONE_NEWNET))
        return errno;
    int error = raise_loopback();
    cell->route = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (!error && cell->route < 0)
        error = errno;
    if (setns(own_netns, CLONE_NEWNET))
        _exit(70);              /* in a namespace that is not ours: nothing we do now is right */
    return error;
}

/* In a child: both namespaces of the cell that are made ahead. */
int cell_enter_netns(const struct cell *cell) {
    int netns = ioctl(cell->route, SIOCGSKNS);
    return netns < 0 || setns(netns, CLONE_NEWNET) ? errno : 0;
}

/* While a box is ready or lent its process keeps the user namespace; before that process is reaped it comes back from there.
 * A pool of ten thousand boxes would else hold more descriptors than a process may. */
void cell_lend_userns(struct cell *cell) {
    drop(&cell->userns);
}

void cell_regain_userns(struct cell *cell, pid_t dead) {
    char path[64];
    snprintf(path, sizeof path, "%d/ns/user", (int)dead);
    if (cell->userns < 0)
        cell->userns = openat(proc_dir, path, O_RDONLY | O_CLOEXEC);
}

int cell_take(struct cell *cell) {
    *cell = (struct cell){.userns = -1, .route = -1};
    int error = take_number(&cell->number);
    if (error)
        return error;
    cgroup_remove(cell->number);            /* what a dead holder of the number left */
    if ((error = make_userns(cell)) || (error = make_netns(cell)))
        cell_free(cell);
    return error;
}

/* Packets that loopback has carried; 1 when it cannot be told. */
static uint64_t packets(int route) {
    struct {
        struct nlmsghdr head;
        struct ifinfomsg info;
    } ask = {{.nlmsg_len = sizeof ask, .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST}, {.ifi_index = 1}};
    char answer[8192] __attribute__((aligned(8)));
    if (route < 0 || send(route, &ask, sizeof ask, 0) < 0)
        return 1;
    ssize_t got = recv(route, answer, sizeof answer, MSG_DONTWAIT);
    struct nlmsghdr *head = (struct nlmsghdr *)answer;
    if (got < (ssize_t)sizeof *head || !NLMSG_OK(head, (unsigned)got) || head->nlmsg_type != RTM_NEWLINK)
        return 1;
    int rest = (int)IFLA_PAYLOAD(head);
    for (struct rtattr *part = IFLA_RTA(NLMSG_DATA(head)); RTA_OK(part, rest); part = RTA_NEXT(part, rest))
        if (part->rta_type == IFLA_STATS64) {
            struct rtnl_link_stats64 stats;
            memcpy(&stats, RTA_DATA(part), sizeof stats);
            return stats.rx_packets + stats.tx_packets;
        }
    return 1;
}

/* Makes a used cell fit for the next box: a network namespace that carried anything is replaced. */
int cell_renew(struct cell *cell) {
    int error = cell->userns < 0 ? make_userns(cell) : 0;
    if (error || WITHOUT(NETNS_RENEWAL) || !packets(cell->route))
        return error;
    drop(&cell->route);
    return make_netns(cell);
}

void cell_free(struct cell *cell) {
    drop(&cell->userns);
    drop(&cell->route);
    cgroup_remove(cell->number);
    lock(cell->number, F_UNLCK);
}

static void sweep_one(uint32_t number) {
    if (number < MAX_CELLS && lock(number, F_WRLCK)) {
        cgroup_remove(number);
        lock(number, F_UNLCK);
    }
}

/* Removes what dead processes left. Call it before taking a cell: the locks of this process do not exclude it itself. */
void cells_sweep(void) {
    cgroup_each(sweep_one);
}
