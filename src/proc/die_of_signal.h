/* Ending by the signal that another process died of. */
#ifndef MU_PROC_DIE_OF_SIGNAL_H
#define MU_PROC_DIE_OF_SIGNAL_H

/* Dies of `signal` as if it had no handler, without a core file. As pid 1, which no signal kills: exits with 128 +
 * signal. Flush first: exit() is not run. */
_Noreturn void mu_die_of(int signal);

#endif
