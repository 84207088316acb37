/* What the box's cgroup counted, read from descriptors that tilt-host or join.c opened; a missing counter reads 0, but for
 * CPU time: where no cgroup is seen (gVisor), it is summed over the processes, which forgets those that nobody waits for. */
#define _GNU_SOURCE
#include "init.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* A number summed over every process of the box but this one, each read from a file of its /proc folder. */
static uint64_t each_process(const char *name, uint64_t (*read_one)(const char *text)) {
    uint64_t sum = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        char path[300], text[512];
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !strcmp(entry->d_name, "1"))
            continue;
        snprintf(path, sizeof path, "/proc/%s/%s", entry->d_name, name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        sum += read_one(slurp(fd, text, sizeof text));
        close(fd);
    }
    if (proc)
        closedir(proc);
    return sum;
}

/* Fields 14 to 17 of /proc/PID/stat: user and system ticks, its own and of the children it waited for. */
static uint64_t stat_cpu_ns(const char *text) {
    unsigned long long user = 0, system = 0, child_user = 0, child_system = 0;
    const char *tail = strrchr(text, ')');
    if (tail)
        (void)sscanf(tail + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu", &user, &system, &child_user, &child_system);
    return (user + system + child_user + child_system) * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
}

static uint64_t processes_cpu_ns(void) {
    struct rusage reaped;
    getrusage(RUSAGE_CHILDREN, &reaped);
    uint64_t seconds = (uint64_t)(reaped.ru_utime.tv_sec + reaped.ru_stime.tv_sec);
    uint64_t micros = (uint64_t)(reaped.ru_utime.tv_usec + reaped.ru_stime.tv_usec);
    return seconds * 1000000000u + micros * 1000u + each_process("stat", stat_cpu_ns);
}

uint64_t meter_cpu_ns(void) {
    char text[1024];
    slurp(INIT_CPU, text, sizeof text);
    if (!text[0])
        return processes_cpu_ns();
    if (text[0] >= '0' && text[0] <= '9')
        return strtoull(text, NULL, 10);            /* v1: cpuacct.usage */
    return field(text, "usage_usec", 1000);         /* v2: cpu.stat */
}

uint64_t meter_peak_bytes(void) {
    char text[64];
    return strtoull(slurp(INIT_PEAK, text, sizeof text), NULL, 10);
}

uint64_t meter_memory_bytes(void) {
    char text[64];
    return strtoull(slurp(INIT_MEMORY, text, sizeof text), NULL, 10);
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

static uint64_t second_number(const char *text) {
    const char *second = strchr(text, ' ');
    return second ? strtoull(second, NULL, 10) : 0;
}

/* Time that the living processes of the box stood ready without a CPU (second field of schedstat), summed. */
uint64_t meter_waited_ns(void) {
    return each_process("schedstat", second_number);
}
