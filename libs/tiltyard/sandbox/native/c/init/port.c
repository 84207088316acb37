/* Sockets on the box's loopback, made here and handed out: they are of the box's network, and the box has no other.
 *
 * Does not: wait. A connection that is still under way is handed out as it is; whoever asked waits for it. */
#define _GNU_SOURCE
#include "init.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 64 };

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static socklen_t loopback(const struct tilt_connect *how, union address *address) {
    memset(address, 0, sizeof *address);
    if (how->family == 4) {
        address->v4 = (struct sockaddr_in){
            .sin_family = AF_INET, .sin_port = htons((uint16_t)how->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        return sizeof address->v4;
    }
    address->v6 = (struct sockaddr_in6){
        .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)how->port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    return sizeof address->v6;
}

static int hand_out(int fd, int carrier) {
    char room[CMSG_SPACE(sizeof fd)] = {0}, nothing = 0;
    struct iovec part = {&nothing, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return sendmsg(carrier, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : errno;
}

int port_connect(const struct tilt_connect *how, int carrier) {
    union address address;
    socklen_t size = loopback(how, &address);
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int error = connect(fd, &address.any, size) && errno != EINPROGRESS ? errno : hand_out(fd, carrier);
    close(fd);
    return error;
}

/* One datagram through loopback: a network namespace that carried anything serves no second box, so that none can find the
 * listener of the one before, should whoever holds that let go of it late. */
static int leave_mark(const union address *address, socklen_t size) {
    int fd = socket(address->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    int error = sendto(fd, "", 1, MSG_NOSIGNAL, &address->any, size) == 1 ? 0 : errno;
    close(fd);
    return error;
}

int port_listen(const struct tilt_connect *how, int carrier) {
    union address address;
    socklen_t size = loopback(how, &address);
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
    if (fd < 0)
        return errno;
    int error = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) || bind(fd, &address.any, size) || listen(fd, BACKLOG) ? errno : 0;
    error = error ?: leave_mark(&address, size) ?: hand_out(fd, carrier);
    close(fd);
    return error;
}
