/* What the command's stdin is still to get: a copy of what came with the request.
 *
 * Guarantees: never waits; the pipe is closed once everything was taken, or the payload has closed its end. */
#include "init.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *bytes;
static size_t size, sent;

void input_take(const char *data, size_t length) {
    input_drop();
    size = length;
    if (size && (bytes = malloc(size)))
        memcpy(bytes, data, size);
}

void input_drop(void) {
    free(bytes);
    bytes = NULL;
    size = sent = 0;
}

void input_feed(int *pipe) {
    if (WITHOUT(END_OF_INPUT) && !size)
        return;
    while (*pipe >= 0) {
        ssize_t taken = bytes ? write(*pipe, bytes + sent, size - sent) : 0;
        if (taken < 0 && errno == EAGAIN)
            return;
        if (taken > 0)
            sent += (size_t)taken;
        if (taken <= 0 || sent == size) {
            close(*pipe);
            *pipe = -1;
        }
    }
}
