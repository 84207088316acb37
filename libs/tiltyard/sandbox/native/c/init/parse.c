/* Frames from Python, taken apart. Pure: no system call but memory; every length is checked against what arrived. */
#define _GNU_SOURCE
#include "init.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool take(const char **cursor, const char *end, void *into, size_t size) {
    if ((size_t)(end - *cursor) < size)
        return false;
    memcpy(into, *cursor, size);
    *cursor += size;
    return true;
}

static const char *take_string(const char **cursor, const char *end) {
    const char *start = *cursor, *stop = memchr(start, 0, (size_t)(end - start));
    if (!stop)
        return NULL;
    *cursor = stop + 1;
    return start;
}

static char **take_strings(const char **cursor, const char *end, uint32_t count) {
    if (count > (size_t)(end - *cursor))            /* each string takes at least its NUL */
        return NULL;
    char **list = calloc((size_t)count + 1, sizeof *list);
    for (uint32_t i = 0; list && i < count; i++)
        if (!(list[i] = (char *)take_string(cursor, end))) {
            free(list);
            return NULL;
        }
    return list;
}

int parse_file(const char **cursor, const char *end, struct tilt_file *how, const char **path, const char **data) {
    if (!take(cursor, end, how, sizeof *how) || how->root > 1 || !how->path_size)
        return EBADMSG;
    if (how->path_size > (size_t)(end - *cursor) || (*cursor)[how->path_size - 1])
        return EBADMSG;
    *path = *cursor;
    *cursor += how->path_size;
    if (how->data_size > (size_t)(end - *cursor))
        return EBADMSG;
    *data = *cursor;
    *cursor += how->data_size;
    return 0;
}

int parse_read(const char *frame, size_t size, struct tilt_read *how, const char **path) {
    const char *end = frame + size;
    if (!take(&frame, end, how, sizeof *how) || how->root > 1 || !(*path = take_string(&frame, end)))
        return EBADMSG;
    return 0;
}

int parse_connect(const char *frame, size_t size, struct tilt_connect *how) {
    const char *end = frame + size;
    if (!take(&frame, end, how, sizeof *how) || frame != end || (how->family != 4 && how->family != 6) || !how->port || how->port > 65535)
        return EBADMSG;
    return 0;
}

static int parse_tail(const char *cursor, const char *end, struct exec_plan *plan) {
    const char *path, *data;
    struct tilt_file file;
    plan->files = cursor;
    for (uint32_t i = 0; i < plan->how.nfiles; i++)
        if (parse_file(&cursor, end, &file, &path, &data))
            return EBADMSG;
    plan->stdin_data = cursor;
    return (size_t)(end - cursor) == plan->how.stdin_size ? 0 : EBADMSG;
}

int parse_exec(const char *frame, size_t size, struct exec_plan *plan) {
    const char *cursor = frame, *end = frame + size;
    memset(plan, 0, sizeof *plan);
    if (!take(&cursor, end, &plan->how, sizeof plan->how) || !plan->how.argc || plan->how.nfds > TILT_MAX_FDS)
        return EBADMSG;
    if (!take(&cursor, end, plan->fd_numbers, plan->how.nfds * sizeof *plan->fd_numbers))
        return EBADMSG;
    for (uint32_t i = 0; i < plan->how.nfds; i++)          /* 0: the command's stdin */
        if (plan->fd_numbers[i] && (plan->fd_numbers[i] < TILT_FIRST_FD || plan->fd_numbers[i] > TILT_LAST_FD))
            return EBADMSG;
    if (plan->how.flags & EXEC_TTY && (plan->how.nfds < 2 || plan->fd_numbers[0] || plan->fd_numbers[1]))
        return EBADMSG;
    if (!(plan->argv = take_strings(&cursor, end, plan->how.argc)) || !(plan->env = take_strings(&cursor, end, plan->how.envc)) ||
        !(plan->cwd = take_string(&cursor, end)) || parse_tail(cursor, end, plan)) {
        exec_plan_free(plan);
        return EBADMSG;
    }
    return 0;
}

void exec_plan_free(struct exec_plan *plan) {
    free(plan->argv);
    free(plan->env);
    plan->argv = plan->env = NULL;
}
