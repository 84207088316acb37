/* The signals of a privileged program, as a descriptor: a child's end, and the two that ask it to go. */
#ifndef TILT_SIGNALS_H
#define TILT_SIGNALS_H

#include <signal.h>
#include <sys/signalfd.h>

/* What the caller ignores is its own matter (a shell's background job ignores SIGINT): nothing below inherits it. */
static int open_signals(void) {
    sigset_t set;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

#endif
