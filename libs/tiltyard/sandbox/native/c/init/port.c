/* A connection to a server inside the box, made here and handed out: it is of the box's network, and the box has no other.
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

static int open_loopback(const struct tilt_connect *how) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)how->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)how->port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(how->family == 4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const struct sockaddr *address = how->family == 4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    if (fd >= 0 && connect(fd, address, how->family == 4 ? sizeof v4 : sizeof v6) && errno != EINPROGRESS) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

int port_connect(const struct tilt_connect *how, int carrier) {
    int fd = open_loopback(how);
    if (fd < 0)
        return errno;
    char room[CMSG_SPACE(sizeof fd)] = {0}, nothing = 0;
    struct iovec part = {&nothing, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    int error = sendmsg(carrier, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : errno;
    close(fd);
    return error;
}
