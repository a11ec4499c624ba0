/* Newer system calls answer ENOSYS, as on the oldest kernel that we run on, if MUSTER_TEST_OLD_KERNEL is set: for this
 * process and everything it starts. Call it first in main(). */
#ifndef TESTS_LIB_OLD_KERNEL_H
#define TESTS_LIB_OLD_KERNEL_H

void old_kernel_if_asked(void);

/* unshare, close_range and memory policies answer EPERM, as in a container of an older Docker, for this process and
 * everything it starts. */
void old_container(void);

#endif
