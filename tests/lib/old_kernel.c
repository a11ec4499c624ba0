#include "old_kernel.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* pidfd_send_signal, pidfd_open, clone3, close_range: the same numbers on every machine. */
#define ANSWER(number, errnum)                                                                                         \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (errnum))
#define REFUSE(number) ANSWER(number, ENOSYS)

static void install(struct sock_filter *filter, size_t len)
{
    struct sock_fprog program = { .len = (unsigned short)len, .filter = filter };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
        perror("seccomp");
        abort();
    }
}

void old_kernel_if_asked(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(424),
        REFUSE(434),
        REFUSE(435),
        REFUSE(436),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    if (getenv("MUSTER_TEST_OLD_KERNEL") != NULL)
        install(filter, sizeof filter / sizeof filter[0]);
}

void old_container(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ANSWER(SYS_unshare, EPERM),
        ANSWER(436, EPERM),
        ANSWER(SYS_set_mempolicy, EPERM),
        ANSWER(SYS_get_mempolicy, EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    install(filter, sizeof filter / sizeof filter[0]);
}
