/* Ending as somebody else did. */
#ifndef MU_PROC_DIE_OF_SIGNAL_H
#define MU_PROC_DIE_OF_SIGNAL_H

/* Dies of `signal` as if nobody had handled it: its handler goes, no core file is made. As pid 1, which no signal
 * kills: ends with 128 + signal. Flush first: nothing of exit() is run. */
_Noreturn void mu_die_of(int signal);

#endif
