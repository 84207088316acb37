/* The empty root: a private mount namespace that holds the images, /usr and a few device nodes, and nothing else.
 *
 * Guarantees: after root_enter the host's root can be reached neither from here nor from any box cloned from here.
 * Layout: /m a mount that holds what a box leaves, all at once: /m/i images (read-only), /m/u the host's /usr (read-only, packages
 * hidden) and /m/t, its own tmpfs; /d devices, /e an empty folder, /z the warm interpreter's files, /b the root of the box in
 * the making. */
#define _GNU_SOURCE
#include "host.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int proc_dir = -1;

/* Files of /proc that tell a box about the host or other boxes; the tree itself is mounted read-only. */
const char *proc_masks[] = {"kcore", "keys", "key-users", "timer_list", "kallsyms", "sched_debug", "cmdline", "config.gz", NULL};
const char *proc_folder_masks[] = {"acpi", "scsi", NULL};

static const char base[] = "/tmp";          /* covered by our root in this namespace alone */

static int clone_tree(const char *path) {
    return (int)syscall(SYS_open_tree, AT_FDCWD, path, 1u /* OPEN_TREE_CLONE */ | O_CLOEXEC);
}

static int attach(int tree, const char *path, unsigned long flags) {
    if (syscall(SYS_move_mount, tree, "", AT_FDCWD, path, 4u /* MOVE_MOUNT_F_EMPTY_PATH */))
        return errno;
    close(tree);
    return mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | flags, NULL) ? errno : 0;
}

static int make_devices(void) {
    static const struct { const char *name; int minor, major; } nodes[] = {
        {"/d/null", 3, 1}, {"/d/zero", 5, 1}, {"/d/full", 7, 1}, {"/d/random", 8, 1}, {"/d/urandom", 9, 1}, {"/d/tty", 0, 5},
    };
    static const struct { const char *name; unsigned major, minor; } more[] = {{"/d/kmsg", 1, 11}, {"/d/loop-control", 10, 237}, {"/d/fuse", 10, 229}, {"/d/kvm", 10, 232}};
    static const char *links[][2] = {{"/proc/self/fd", "/d/fd"}, {"/proc/self/fd/0", "/d/stdin"}, {"/proc/self/fd/1", "/d/stdout"},
                                     {"/proc/self/fd/2", "/d/stderr"}};
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (mknod(nodes[i].name, S_IFCHR | 0666, makedev((unsigned)nodes[i].major, (unsigned)nodes[i].minor)))
            return errno;
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (symlink(links[i][0], links[i][1]))
            return errno;
    for (size_t i = 0; WITHOUT(FEW_DEVICES) && i < sizeof more / sizeof *more; i++)
        if (mknod(more[i].name, S_IFCHR | 0666, makedev(more[i].major, more[i].minor)))
            return errno;
    return mkdir("/d/shm", 01777) ? errno : 0;
}

static bool is_package_folder(const char *name) {
    return !strcmp(name, "site-packages") || !strcmp(name, "dist-packages");
}

/* Whatever was installed for the host's interpreters stays invisible: it may be ours. */
static int hide_packages(const char *lib) {
    char path[600];
    DIR *folder = opendir(lib);
    int error = 0;
    for (struct dirent *entry; folder && !error && (entry = readdir(folder));) {
        if (fnmatch("python[0-9]*", entry->d_name, 0))
            continue;
        snprintf(path, sizeof path, "%s/%s", lib, entry->d_name);
        DIR *inner = opendir(path);
        for (struct dirent *part; inner && !error && (part = readdir(inner));) {
            if (!is_package_folder(part->d_name))
                continue;
            char hidden[900];
            snprintf(hidden, sizeof hidden, "%s/%s", path, part->d_name);
            if (mount("/e", hidden, NULL, MS_BIND, NULL) || mount(NULL, hidden, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
                error = errno;
        }
        if (inner)
            closedir(inner);
    }
    if (folder)
        closedir(folder);
    return error;
}

static int enter(int store, int usr) {
    if (mount("tilt", base, "tmpfs", MS_NOSUID, "size=1m,nr_inodes=64,mode=0755") || chdir(base))
        return errno;
    for (const char *name = "mdebzo"; *name; name++)
        if (mkdir((char[]){*name, 0}, 0755))
            return errno;
    umask(0);
    if (syscall(SYS_pivot_root, ".", "o") || chdir("/"))
        return errno;
    if (mount("/m", "/m", NULL, MS_BIND, NULL) || mkdir("/m/i", 0755) || mkdir("/m/u", 0755) || mkdir("/m/t", 0755))
        return errno;
    int error = attach(store, "/m/i", MS_RDONLY | MS_NOSUID | MS_NODEV) ?: attach(usr, "/m/u", MS_RDONLY | MS_NOSUID | MS_NODEV);
    if (!error && (umount2("/o", MNT_DETACH) || rmdir("/o")))
        error = errno;
    return error ?: make_devices() ?: hide_packages("/m/u/lib") ?: hide_packages("/m/u/lib64");
}

int root_enter(const char *store) {
    struct stat found;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return errno;
    proc_dir = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int images = clone_tree(store), usr = clone_tree("/usr");
    if (proc_dir < 0 || images < 0 || usr < 0 || fstat(images, &found))
        return errno;
    if (found.st_uid || found.st_mode & 022)        /* an image that others may write is nobody's pristine state */
        return EPERM;
    return enter(images, usr);
}
