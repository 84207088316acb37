/* What PID 1 gives up before it listens: capabilities, new privileges, system calls, large resources.
 * Everything here is inherited by every payload, so that starting one costs nothing more. */
#define _GNU_SOURCE
#include "init.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "tilt-init knows x86_64 and aarch64"
#endif

int bounding_set_empty(void) {
    for (int cap = 0; cap < 64; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0))
            return errno == EINVAL && cap > CAP_SETPCAP ? 0 : errno;       /* past the kernel's last one */
    return 0;
}

/* PID 1 keeps the right to become the payload and to kill it, inside its own user namespace only. */
int rights_drop(void) {
    if (WITHOUT(PRIVILEGES))
        return prctl(PR_SET_DUMPABLE, WITHOUT(DUMPABLE), 0, 0, 0) ? errno : 0;
    int error = bounding_set_empty();
    if (error)
        return error;
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    data[0].permitted = data[0].effective = 1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_KILL;
    if (syscall(SYS_capset, &head, data) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_DUMPABLE, WITHOUT(DUMPABLE), 0, 0, 0))
        return errno;
    return 0;
}

static bool left_out(int what) {
    return what == RLIMIT_NOFILE ? WITHOUT(NOFILE) : what == RLIMIT_FSIZE ? WITHOUT(FSIZE) : WITHOUT(RLIMITS);
}

/* Linux takes every one of them; gVisor knows no message queues and no priorities, and refuses those three. */
int limits_set(uint64_t nofile, uint64_t file_bytes) {
    const struct { int what; uint64_t most; bool everywhere; } table[] = {
        {RLIMIT_CORE, 0, true}, {RLIMIT_MEMLOCK, 64 << 10, true}, {RLIMIT_NOFILE, nofile, true}, {RLIMIT_FSIZE, file_bytes, true},
        {RLIMIT_MSGQUEUE, 64 << 10, false}, {RLIMIT_RTPRIO, 0, false}, {RLIMIT_NICE, 0, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct rlimit most = {table[i].most, table[i].most};
        if (!left_out(table[i].what) && setrlimit(table[i].what, &most) && (table[i].everywhere || errno != EPERM))
            return errno;
    }
    return 0;
}

/* Denied with EPERM. From the lists of isolate, Docker and systemd; each leads out, or leaks between boxes. */
static int denied[] = {
    /* namespaces and mounts */
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig,
    SYS_fsmount, SYS_fspick, SYS_mount_setattr,
    /* other processes' memory and descriptors */
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_pidfd_getfd, SYS_process_madvise, SYS_move_pages,
    SYS_migrate_pages,
    /* kernel state shared by all boxes */
    SYS_keyctl, SYS_add_key, SYS_request_key, SYS_bpf, SYS_perf_event_open, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
    SYS_userfaultfd, SYS_syslog, SYS_acct, SYS_quotactl, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_kexec_load, SYS_kexec_file_load,
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex,
    SYS_sethostname, SYS_setdomainname, SYS_vhangup, SYS_lookup_dcookie, SYS_nfsservctl, SYS_fanotify_init,
    /* around path checks */
    SYS_open_by_handle_at, SYS_name_to_handle_at,
#ifdef SYS_memfd_secret
    SYS_memfd_secret,
#endif
#ifdef SYS_quotactl_fd
    SYS_quotactl_fd,
#endif
#ifdef __x86_64__
    SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_uselib, SYS__sysctl, SYS_create_module, SYS_get_kernel_syms, SYS_query_module, SYS_ustat,
    SYS_sysfs,
#endif
};

enum { COUNT = sizeof denied / sizeof *denied, NEW_SPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                                           CLONE_NEWPID | CLONE_NEWNET | 0x80 /* CLONE_NEWTIME */ };

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define SAME(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), yes, no)
#define REFUSE(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter code[4 * COUNT + 64];
static unsigned length;

static void emit(const struct sock_filter *more, size_t count) {
    memcpy(code + length, more, count * sizeof *more);
    length += (unsigned)count;
}
#define EMIT(...) do { const struct sock_filter more[] = {__VA_ARGS__}; emit(more, sizeof more / sizeof *more); } while (0)

static int by_number(const void *left, const void *right) {
    return *(const int *)left - *(const int *)right;
}

/* A search tree over the denied numbers: a dozen steps for any call, both here and when the kernel prepares its cache of
 * calls that are always allowed, for which it walks the filter once for each number. */
static void deny(const int *numbers, unsigned count) {
    if (count <= 3) {
        for (unsigned i = 0; i < count; i++)
            EMIT(SAME(numbers[i], 0, 1), REFUSE(EPERM));
        EMIT(ALLOW);
        return;
    }
    unsigned half = count / 2, jump = length;
    EMIT(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (uint32_t)numbers[half], 0, 0));
    deny(numbers, half);
    code[jump].jt = (unsigned char)(length - jump - 1);     /* two steps a number: far below 256 */
    deny(numbers + half, count - half);
}

int seccomp_install(void) {
    if (WITHOUT(SECCOMP))
        return 0;
    length = 0;
    qsort(denied, COUNT, sizeof *denied, by_number);
    EMIT(LOAD(arch), SAME(NATIVE_ARCH, 1, 0), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), LOAD(nr));
#ifdef __x86_64__
    EMIT(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1), REFUSE(ENOSYS));      /* the x32 ABI */
#endif
    EMIT(SAME(SYS_clone3, 0, 1), REFUSE(ENOSYS));            /* its flags lie in memory: libc falls back to clone */
    EMIT(SAME(SYS_clone, 0, 4), LOAD(args[0]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_SPACES & ~0xffu, 0, 1), REFUSE(EPERM), ALLOW);
    EMIT(SAME(SYS_socket, 0, 6), LOAD(args[0]), SAME(AF_VSOCK, 2, 0), SAME(AF_ALG, 1, 0), SAME(AF_PACKET, 0, 1), REFUSE(EAFNOSUPPORT), ALLOW);
    EMIT(SAME(SYS_ioctl, 0, 5), LOAD(args[1]), SAME(0x5412 /* TIOCSTI */, 1, 0), SAME(0x541c /* TIOCLINUX */, 0, 1), REFUSE(EPERM), ALLOW);
    /* nobody here may do either; gVisor lets everybody */
    EMIT(SAME(SYS_setpriority, 0, 3), LOAD(args[2]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x80000000u, 0, 1), REFUSE(EPERM), LOAD(nr));
    EMIT(SAME(SYS_mknodat, 0, 6), LOAD(args[2]), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, S_IFMT), SAME(S_IFCHR, 1, 0), SAME(S_IFBLK, 0, 1),
         REFUSE(EPERM), LOAD(nr));
#ifdef __x86_64__
    EMIT(SAME(SYS_mknod, 0, 6), LOAD(args[1]), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, S_IFMT), SAME(S_IFCHR, 1, 0), SAME(S_IFBLK, 0, 1),
         REFUSE(EPERM), LOAD(nr));
#endif
    EMIT(SAME(SYS_personality, 0, 6), LOAD(args[0]), SAME(0, 2, 0), SAME(0x40000 /* ADDR_NO_RANDOMIZE */, 1, 0), SAME(0xffffffff, 0, 1), ALLOW,
         REFUSE(EPERM));
    deny(denied, COUNT);
    struct sock_fprog program = {.len = (unsigned short)length, .filter = code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) ? errno : 0;
}
