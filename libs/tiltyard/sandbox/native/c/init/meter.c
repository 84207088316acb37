/* What the box's cgroup counted, read from descriptors that tilt-host opened; a missing counter reads 0. */
#define _GNU_SOURCE
#include "init.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *slurp(int fd, char *buffer, size_t size) {
    ssize_t got = pread(fd, buffer, size - 1, 0);
    buffer[got > 0 ? got : 0] = 0;
    return buffer;
}

/* The number after `key ` at the start of a line, times `unit`; 0 when the key is absent. */
static uint64_t field(const char *text, const char *key, uint64_t unit) {
    size_t length = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (!strncmp(line, key, length) && line[length] == ' ')
            return strtoull(line + length + 1, NULL, 10) * unit;
    return 0;
}

uint64_t meter_cpu_ns(void) {
    char text[1024];
    slurp(INIT_CPU, text, sizeof text);
    if (text[0] >= '0' && text[0] <= '9')
        return strtoull(text, NULL, 10);            /* v1: cpuacct.usage */
    return field(text, "usage_usec", 1000);         /* v2: cpu.stat */
}

uint64_t meter_peak_bytes(void) {
    char text[64];
    return strtoull(slurp(INIT_PEAK, text, sizeof text), NULL, 10);
}

void meter_reset_peak(void) {
    (void)!pwrite(INIT_PEAK, "0\n", 2, 0);          /* v1, and v2 from Linux 6.12; elsewhere the peak is the box's */
}

uint64_t meter_oom_kills(void) {
    char text[512];
    return field(slurp(INIT_OOM, text, sizeof text), "oom_kill", 1);
}

uint64_t meter_pids_hits(void) {
    char text[128];
    return field(slurp(INIT_PIDS, text, sizeof text), "max", 1);
}

uint64_t meter_throttled_ns(void) {
    char text[1024];
    slurp(INIT_THROTTLE, text, sizeof text);
    uint64_t v1 = field(text, "throttled_time", 1);
    return v1 ? v1 : field(text, "throttled_usec", 1000);
}

/* Time that the living processes of the box stood ready without a CPU (second field of schedstat), summed. */
uint64_t meter_waited_ns(void) {
    uint64_t sum = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        char path[300], text[128], *second;
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/schedstat", entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        slurp(fd, text, sizeof text);
        close(fd);
        if ((second = strchr(text, ' ')))
            sum += strtoull(second, NULL, 10);
    }
    if (proc)
        closedir(proc);
    return sum;
}
