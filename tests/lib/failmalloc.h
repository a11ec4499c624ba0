/*
 * Makes any allocation of the code under test fail the nth time.
 *
 * Every test program is linked with --wrap for malloc, calloc, realloc, strdup and strndup, so calls from our
 * objects and from the test itself are counted here; calls inside libc and other shared libraries are not.
 * To count libuv's too, call uv_replace_allocator(malloc, realloc, calloc, free) before any other use of libuv:
 * in a test those names are the wrapped ones. Counting is safe from several threads.
 */
#ifndef TESTS_LIB_FAILMALLOC_H
#define TESTS_LIB_FAILMALLOC_H

#include <stdbool.h>

/* Counting from now, the nth allocation returns NULL with ENOMEM, once. 0: none does. */
void fail_alloc_at(unsigned long nth);

/* Whether the allocation named last has been reached, and so has failed. */
bool fail_alloc_hit(void);

/* Allocations since the last fail_alloc_at(), the failed one included. */
unsigned long fail_alloc_count(void);

/* Drives FOR_EACH_FAILURE. Disarms and returns false after a run that no failure reached. */
bool fail_alloc_next(unsigned long *nth);

/*
 * Runs its body with the first allocation failing, then with the second, and so on, until a run gets through
 * without reaching the one that was to fail; that run is the last. Do not leave the body by break or return
 * without fail_alloc_at(0).
 *
 *     FOR_EACH_FAILURE (n) {
 *         int rc = mu_thing_new(&thing);
 *
 *         assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
 *         mu_thing_free(thing);
 *     }
 */
#define FOR_EACH_FAILURE(n) for (unsigned long n = 0; fail_alloc_next(&(n));)

#endif
