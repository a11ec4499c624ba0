/* For functions that run in a child that shares our memory, on a stack of its own: sanitizers cannot follow them. */
#ifndef MU_PROC_IN_CHILD_H
#define MU_PROC_IN_CHILD_H

#if defined(__clang__)
#define MU_IN_CHILD __attribute__((no_sanitize("address", "undefined", "memory", "thread")))
#else
#define MU_IN_CHILD __attribute__((no_sanitize_address, no_sanitize_undefined, no_sanitize_thread))
#endif

#endif
