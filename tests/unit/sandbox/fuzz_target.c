/* What is fuzzed: tilt-init's frame parser, which must refuse or stay within the frame. Built with sanitizers, and either with
 * libFuzzer (clang) or with fuzz_drive.c. */
#define _GNU_SOURCE
#include "init/init.h"
#include <stdlib.h>
#include <string.h>

long fuzz_accepted;             /* frames that were sound */

static void inside(const char *frame, size_t size, const char *part) {
    if (part < frame || part > frame + size)
        abort();
}

static int accept(const char *frame, size_t size) {
    struct exec_plan plan;
    struct tilt_file file;
    struct tilt_read read;
    struct tilt_connect connect;
    const char *path, *data, *cursor = frame;
    if (!parse_file(&cursor, frame + size, &file, &path, &data)) {
        inside(frame, size, path + strlen(path));
        inside(frame, size, data + file.data_size);
    }
    if (!parse_read(frame, size, &read, &path))
        inside(frame, size, path + strlen(path));
    if (!parse_connect(frame, size, &connect) && (size != sizeof connect || !connect.port || connect.port > 65535))
        abort();
    if (parse_exec(frame, size, &plan))
        return 0;
    if (plan.how.flags & EXEC_TTY && plan.how.nfds < 2)
        abort();
    for (uint32_t i = 0; i < plan.how.nfds; i++)
        if (plan.fd_numbers[i] > TILT_LAST_FD)
            abort();
    for (char **each = plan.argv; *each; each++)
        inside(frame, size, *each + strlen(*each));
    for (char **each = plan.env; *each; each++)
        inside(frame, size, *each + strlen(*each));
    inside(frame, size, plan.stdin_data + plan.how.stdin_size);
    exec_plan_free(&plan);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *frame = malloc(size ? size : 1);      /* exactly as long, so that one byte too far is seen */
    if (size)
        memcpy(frame, data, size);
    fuzz_accepted += accept(frame, size);
    free(frame);
    return 0;
}
