/* A small fuzzer for fuzz_target.c where clang's is not to be had: it mutates what it has and keeps what reaches new code.
 *
 *   fuzz ROUNDS SEED [FOLDER [SECONDS]]      prints "ROUNDS ACCEPTED KEPT EDGES"
 *
 * Guarantees: with a FOLDER what it kept is there afterwards, and is where the next run starts. Coverage is gcc's
 * -fsanitize-coverage=trace-pc: a table of pairs of places that followed one another, as AFL's, without its counts.
 * Does not: shrink what it finds, compare values, or watch for slowness. This file must not be built with coverage. */
#define _GNU_SOURCE
#include "init/init.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { EDGES = 1 << 12, MOST_KEPT = 4096, MOST_BYTES = 4096, CHECK = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern long fuzz_accepted;

static unsigned char seen[EDGES], now[EDGES];
static uintptr_t before;
static struct { uint8_t *data; size_t size; } kept[MOST_KEPT];
static uint32_t kept_count, edge_count;
static uint64_t state;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0) * 0x9e3779b97f4a7c15u >> 40;
    now[(here ^ before) % EDGES] = 1;
    before = here >> 1;
}

static uint32_t roll(uint32_t most) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 11) % most;
}

/* Runs it; how many places it reached that nothing did before. */
static uint32_t try(const uint8_t *data, size_t size) {
    uint32_t fresh = 0;
    memset(now, 0, sizeof now);
    before = 0;
    LLVMFuzzerTestOneInput(data, size);
    for (uint32_t i = 0; i < EDGES; i++)
        if (now[i] && !seen[i])
            fresh += seen[i] = 1;
    edge_count += fresh;
    return fresh;
}

static void save(const char *folder, const uint8_t *data, size_t size) {
    char path[512];
    uint64_t name = 1469598103934665603u;
    for (size_t i = 0; i < size; i++)
        name = (name ^ data[i]) * 1099511628211u;
    snprintf(path, sizeof path, "%s/%016llx", folder, (unsigned long long)name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        exit(4);
    close(fd);
}

static void keep(const char *folder, const uint8_t *data, size_t size) {
    if (kept_count == MOST_KEPT || !(kept[kept_count].data = malloc(size + 1)))
        return;
    memcpy(kept[kept_count].data, data, size);
    kept[kept_count++].size = size;
    if (folder)
        save(folder, data, size);
}

static void begin_with(const uint8_t *data, size_t size) {
    try(data, size);
    keep(NULL, data, size);
}

static void load(const char *folder) {
    uint8_t data[MOST_BYTES];
    char path[512];
    DIR *all = opendir(folder);
    for (struct dirent *each; all && (each = readdir(all));) {
        snprintf(path, sizeof path, "%s/%.255s", folder, each->d_name);
        int fd = each->d_name[0] == '.' ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        ssize_t size = fd < 0 ? -1 : read(fd, data, sizeof data);
        if (size >= 0)
            begin_with(data, (size_t)size);
        if (fd >= 0)
            close(fd);
    }
    if (all)
        closedir(all);
}

#define ADD(part, length) do { memcpy(into + size, part, length); size += length; } while (0)

static size_t sound_exec(uint8_t *into) {
    struct tilt_exec how = {.cpu_ns = 1, .wall_ns = 1, .argc = 2, .envc = 1, .nfds = 1, .nfiles = 1, .stdin_size = 3};
    struct tilt_file file = {.root = 0, .mode = 0644, .path_size = 2, .data_size = 4};
    uint32_t number = 3;
    size_t size = 0;
    ADD(&how, sizeof how);
    ADD(&number, sizeof number);
    ADD("sh\0-c\0A=b\0/box\0", 15);
    ADD(&file, sizeof file);
    ADD("f\0datain!", 9);
    return size;
}

static void begin(void) {
    uint8_t frame[512];
    const struct tilt_connect connect = {.family = 4, .port = 8080};
    const struct tilt_read read = {.root = 1, .size = 64};
    begin_with(frame, sound_exec(frame));
    if (!fuzz_accepted)
        exit(2);
    begin_with((const uint8_t *)&connect, sizeof connect);
    memcpy(frame, &read, sizeof read);
    memcpy(frame + sizeof read, "a/b", 4);
    begin_with(frame, sizeof read + 4);
}

/* One thing of the usual: a bit, a byte, a number, a cut, a piece of another. */
static size_t change(uint8_t *data, size_t size) {
    static const uint32_t numbers[] = {0, 1, 2, 15, 16, 17, 255, 256, 65535, 65536, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    uint32_t at = size ? roll((uint32_t)size) : 0;
    switch (roll(7)) {
    case 0:
        return size ? (data[at] ^= (uint8_t)(1u << roll(8)), size) : 0;
    case 1:
        return size ? (data[at] = (uint8_t)roll(256), size) : 0;
    case 2:
        if (at + 4 <= size)
            memcpy(data + at / 4 * 4, &numbers[roll(sizeof numbers / sizeof *numbers)], 4);
        return size;
    case 3:
        return at;
    case 4:
        data[size] = (uint8_t)roll(256);
        return size + 1;
    case 5:
        if (size)
            memmove(data + at, data + at + 1, size - at - 1);
        return size ? size - 1 : 0;
    default: {
        uint32_t other = roll(kept_count), length = (uint32_t)kept[other].size;
        uint32_t from = length ? roll(length) : 0, room = MOST_BYTES / 2 > at ? MOST_BYTES / 2 - at : 0;
        uint32_t count = length - from < room ? length - from : room;
        memcpy(data + at, kept[other].data + from, count);
        return at + count > size ? at + count : size;
    }
    }
}

static void mutate(const char *folder) {
    uint8_t data[MOST_BYTES];
    uint32_t of = roll(kept_count);
    size_t size = kept[of].size < MOST_BYTES / 2 ? kept[of].size : MOST_BYTES / 2;
    memcpy(data, kept[of].data, size);
    for (uint32_t times = 1 + roll(4); times; times--)
        size = change(data, size);
    if (try(data, size))
        keep(folder, data, size);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 1;
    long rounds = atol(argv[1]), round = 0;
    const char *folder = argc > 3 ? argv[3] : NULL;
    time_t end = argc > 4 ? time(NULL) + atol(argv[4]) : 0;
    state = strtoull(argv[2], NULL, 10) | 1;
    begin();
    if (folder)
        load(folder);
    for (; round < rounds && (!end || round % CHECK || time(NULL) < end); round++)
        mutate(folder);
    printf("%ld %ld %u %u\n", round, fuzz_accepted, kept_count, edge_count);
    return 0;
}
