/* Errors with context. mu_fail() sets code and text; each caller up the stack may put its own step in front with
 * mu_wrap(), so that the text reads outside-in: "load 'h.txt': line 3: bad port '99999'". */
#ifndef MU_BASE_ERROR_H
#define MU_BASE_ERROR_H

#include "muster.h"

/* Both return the (negative) code, so that they can stand in a return statement. `reterr` may be NULL. mu_wrap() is
 * given the code that the failed call returned. */
int mu_fail(struct muster_error *reterr, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int mu_wrap(struct muster_error *reterr, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The analyzer, which does not look into functions of other files, is told that these return what they are given. */
#if defined(__clang_analyzer__) && !defined(MU_BASE_ERROR_C)
void mu_fail_looks_at(struct muster_error *reterr, const char *format, ...);
#define mu_fail(reterr, code, ...) (mu_fail_looks_at(reterr, __VA_ARGS__), (int)(code))
#define mu_wrap(reterr, code, ...) (mu_fail_looks_at(reterr, __VA_ARGS__), (int)(code))
#endif

/* The same for an errno value, whose text is put behind ours. Known values get their own code. `errnum` stays
 * in the error however often it is wrapped. */
int mu_fail_errno(struct muster_error *reterr, int errnum, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A call of a user's code, `what`, has returned `rc`: that decides, whatever the call has put into the error. Returns
 * the code, which the error has, too. */
int mu_settle(const char *what, int rc, struct muster_error *error);

#endif
