/* tilt-init as a program: what a container runtime starts. A native box has none: there tilt-host's child calls init_run. */
#include "init.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Arguments: --join SOCKET NOFILE FILE_BYTES CPU_MILLI. */
int main(int count, char **arguments) {
    if (count == 2 && !strcmp(arguments[1], "--hash"))
        return puts(TILT_SOURCE_HASH) < 0;
    if (count != 6 || strcmp(arguments[1], "--join"))
        return 2;
    if (join_prepare())
        _exit(EXIT_JOIN + STEP_DESCRIPTORS);
    init_run(&(struct init_start){
        .nofile = strtoull(arguments[3], NULL, 10),
        .file_bytes = strtoull(arguments[4], NULL, 10),
        .cpu_milli = strtoull(arguments[5], NULL, 10),
        .arguments = arguments,
    });
}
