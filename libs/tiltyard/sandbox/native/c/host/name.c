/* The program that runs, and its command line: neither may tell a box anything, or be changed from one.
 *
 * Guarantees: tilt-host, and so every tilt-init, runs from sealed memory, so whoever got hold of /proc/1/exe could not write to
 * what the next box starts; /proc/1/cmdline of a box says tilt-init and nothing of the host. */
#define _GNU_SOURCE
#include "host.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *first, *last;      /* the command line, from its first byte to its last */

static int sealed_copy(int from) {
    char block[65536];
    ssize_t got;
    int to = memfd_create("tilt-host", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    while (to >= 0 && (got = read(from, block, sizeof block)) > 0)
        if (write(to, block, (size_t)got) != got)
            return -1;
    return to < 0 || fchmod(to, 0555) || fcntl(to, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) ? -1 : to;
}

/* Starts this program anew from sealed memory, with `--sealed PROGRAMS` before its arguments. Returns only the errno. */
int name_seal(char **arguments, int programs) {
    char number[16], *again[8] = {arguments[0], "--sealed", number}, *none[] = {NULL};
    int self = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), copy = self < 0 ? -1 : sealed_copy(self);
    if (copy < 0 || fcntl(programs, F_SETFD, 0))
        return errno;
    snprintf(number, sizeof number, "%d", programs);
    for (int i = 1; arguments[i] && i < 5; i++)
        again[2 + i] = arguments[i];
    syscall(SYS_execveat, copy, "", again, none, AT_EMPTY_PATH);
    return errno;
}

void name_keep(char **arguments) {
    first = last = arguments[0];
    for (; *arguments; arguments++)
        last = *arguments + strlen(*arguments);
}

/* In a child that becomes tilt-init. */
void name_forget(void) {
    static const char ours[] = "tilt-init";
    memset(first, 0, (size_t)(last - first));
    if ((size_t)(last - first) >= sizeof ours)
        memcpy(first, ours, sizeof ours);
}
