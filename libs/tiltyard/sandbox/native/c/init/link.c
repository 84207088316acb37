/* The socket to Python: frames in, frames out. Never blocks: what the socket does not take waits here, and while
 * anything waits nobody reads more output from the payload, so memory stays bounded. */
#define _GNU_SOURCE
#include "init.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

bool link_blocked;

static char *waiting;                   /* bytes that the socket has not taken */
static size_t waiting_size, waiting_sent;
static char *inbox;                     /* bytes that do not make a whole frame yet */
static size_t inbox_size, inbox_room;
static int fds[TILT_MAX_FDS];
static uint32_t fd_count;

static void keep(const struct iovec *parts, int count, size_t skip) {
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += parts[i].iov_len;
    char *grown = malloc(waiting_size - waiting_sent + total - skip);
    if (!grown)
        leave(12);
    size_t size = waiting_size - waiting_sent;
    if (size)
        memcpy(grown, waiting + waiting_sent, size);
    for (int i = 0; i < count; i++) {
        size_t drop = skip < parts[i].iov_len ? skip : parts[i].iov_len;
        if (parts[i].iov_len > drop)
            memcpy(grown + size, (char *)parts[i].iov_base + drop, parts[i].iov_len - drop);
        size += parts[i].iov_len - drop;
        skip -= drop;
    }
    free(waiting);
    waiting = grown;
    waiting_size = size;
    waiting_sent = 0;
    link_blocked = true;
}

/* Until the next flush, keep everything: several frames then leave in one call. */
void link_hold(void) {
    link_blocked = true;
}

void link_flush(void) {
    while (waiting_sent < waiting_size) {
        ssize_t sent = send(INIT_SOCKET, waiting + waiting_sent, waiting_size - waiting_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN)
            return;
        if (sent < 0)
            leave(0);
        waiting_sent += (size_t)sent;
    }
    free(waiting);
    waiting = NULL;
    waiting_size = waiting_sent = 0;
    link_blocked = false;
}

void link_send(uint8_t type, uint8_t stream, uint32_t id, const void *head, size_t head_size, const void *data, size_t data_size) {
    struct tilt_frame frame = {.size = (uint32_t)(head_size + data_size), .type = type, .stream = stream, .id = id};
    struct iovec parts[] = {{&frame, sizeof frame}, {(void *)head, head_size}, {(void *)data, data_size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    ssize_t sent = link_blocked ? 0 : sendmsg(INIT_SOCKET, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN)
        leave(0);
    if (sent < 0)
        sent = 0;
    if ((size_t)sent < sizeof frame + head_size + data_size)
        keep(parts, 3, (size_t)sent);
}

static void keep_fds(struct msghdr *message) {
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        int count = (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < count; i++) {
            int fd = ((int *)CMSG_DATA(part))[i];
            int high = fd_count < TILT_MAX_FDS ? fcntl(fd, F_DUPFD_CLOEXEC, MIN_HIGH_FD) : -1;
            close(fd);
            if (high >= 0)
                fds[fd_count++] = high;
        }
    }
}

int link_take_fds(uint32_t count, int *into) {
    if (count > fd_count)
        return EBADF;
    memcpy(into, fds, count * sizeof *fds);
    memmove(fds, fds + count, (fd_count - count) * sizeof *fds);
    fd_count -= count;
    return 0;
}

/* Room for the rest of the frame that has begun, or for a small one. */
static bool make_room(void) {
    size_t want = 4096;
    struct tilt_frame *frame = (struct tilt_frame *)inbox;
    if (inbox_size >= sizeof *frame) {
        if (frame->size > TILT_MAX_FRAME)
            return false;
        want = sizeof *frame + frame->size;
    }
    if (want <= inbox_room)
        return true;
    char *grown = realloc(inbox, want);
    if (!grown)
        return false;
    inbox = grown;
    inbox_room = want;
    return true;
}

static void handle_whole(void (*handle)(const struct tilt_frame *, char *)) {
    size_t start = 0;
    struct tilt_frame frame;
    while (inbox_size - start >= sizeof frame) {
        memcpy(&frame, inbox + start, sizeof frame);
        if (inbox_size - start < sizeof frame + frame.size)
            break;
        handle(&frame, inbox + start + sizeof frame);
        start += sizeof frame + frame.size;
    }
    memmove(inbox, inbox + start, inbox_size - start);
    inbox_size -= start;
    if (!inbox_size && inbox_room > 64 << 10) {         /* give a large frame's memory back to the box */
        free(inbox);
        inbox = NULL;
        inbox_room = 0;
    }
}

/* Takes what has come and handles each whole frame; false when Python is gone or talks nonsense. */
bool link_receive(void (*handle)(const struct tilt_frame *, char *payload)) {
    char control[CMSG_SPACE(TILT_MAX_FDS * sizeof(int))];
    if (!make_room())
        return false;
    struct iovec part = {inbox + inbox_size, inbox_room - inbox_size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(INIT_SOCKET, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR;
    if (!got)
        return false;
    keep_fds(&message);
    inbox_size += (size_t)got;
    handle_whole(handle);
    return true;
}

void link_replace(int socket) {
    free(waiting);
    waiting = NULL;
    waiting_size = waiting_sent = inbox_size = 0;       /* what Python asked PID 1 is PID 1's to answer */
    link_blocked = false;
    while (fd_count)
        close(fds[--fd_count]);
    if (dup3(socket, INIT_SOCKET, O_CLOEXEC) < 0)
        _exit(4);
    close(socket);
}
