/* Feeds tilt-init's frame parser broken frames, under sanitizers: it must refuse or stay within the frame. */
#define _GNU_SOURCE
#include "init/init.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint32_t roll(uint32_t most) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 11) % most;
}

static size_t sound_frame(char *into) {
    struct tilt_exec how = {.cpu_ns = 1, .wall_ns = 1, .argc = 2, .envc = 1, .nfds = 1, .nfiles = 1, .stdin_size = 3};
    struct tilt_file file = {.root = 0, .mode = 0644, .path_size = 2, .data_size = 4};
    uint32_t number = 3;
    size_t size = 0;
#define ADD(data, length) do { memcpy(into + size, data, length); size += length; } while (0)
    ADD(&how, sizeof how);
    ADD(&number, sizeof number);
    ADD("sh\0-c\0A=b\0/box\0", 15);
    ADD(&file, sizeof file);
    ADD("f\0datain!", 9);
    return size;
}

static void inside(const char *frame, size_t size, const char *part) {
    if (part < frame || part > frame + size)
        abort();
}

static int parse(const char *frame, size_t size) {
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

/* The small frame of a connection, whole, cut and with every kind of number. */
static long fuzz_connect(long rounds) {
    struct tilt_connect how = {.family = 4, .port = 8080};
    long accepted = 0;
    for (long i = 0; i < rounds; i++) {
        size_t length = roll(4) ? sizeof how : roll(sizeof how + 4);
        char *frame = calloc(1, length ? length : 1);
        memcpy(frame, &how, length < sizeof how ? length : sizeof how);
        for (uint32_t flips = roll(3); flips && length; flips--)
            frame[roll((uint32_t)length)] = (char)roll(256);
        struct tilt_connect seen;
        if (!parse_connect(frame, length, &seen))
            accepted++;
        parse(frame, length);
        free(frame);
    }
    return accepted;
}

int main(int argc, char **argv) {
    char sound[512];
    size_t size = sound_frame(sound);
    long rounds = argc > 2 ? atol(argv[1]) : 1000, accepted = parse(sound, size);
    state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
    if (!accepted)
        return 2;
    for (long i = 0; i < rounds; i++) {
        size_t length = roll(4) ? size : roll((uint32_t)size + 1);
        char *frame = malloc(length ? length : 1);              /* exactly as long, so that one byte too far is seen */
        memcpy(frame, sound, length);
        for (uint32_t flips = roll(4); flips && length; flips--)
            frame[roll((uint32_t)length)] = (char)(roll(3) ? roll(256) : roll(2) * 255);
        accepted += parse(frame, length);
        free(frame);
    }
    if (!fuzz_connect(rounds / 10))
        return 3;
    printf("%ld\n", accepted);
    return 0;
}
