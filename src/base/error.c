#define MU_BASE_ERROR_C
/* Error codes, their names and their texts. A text that does not fit is cut at the end, never overrun. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *muster_error_name(int code)
{
    switch (code) {
    case 0:
        return "OK";
#define X(name, number, text)                                                                                          \
    case MUSTER_##name:                                                                                                \
        return #name;
        MUSTER_ERRORS(X)
#undef X
    default:
        return "unknown";
    }
}

const char *muster_error_text(int code)
{
    switch (code) {
    case 0:
        return "success";
#define X(name, number, text)                                                                                          \
    case MUSTER_##name:                                                                                                \
        return text;
        MUSTER_ERRORS(X)
#undef X
    default:
        return "unknown error";
    }
}

bool muster_error_is_rdzv(int code)
{
    return code <= MUSTER_ERDZV_CLOSED && code >= MUSTER_ERDZV_GRACEFUL_EXIT;
}

static void set_text(struct muster_error *err, int code, const char *format, va_list args)
{
    err->code = code;
    (void)vsnprintf(err->text, sizeof err->text, format, args);
}

int mu_fail(struct muster_error *reterr, int code, const char *format, ...)
{
    va_list args;

    if (reterr == NULL)
        return code;
    va_start(args, format);
    set_text(reterr, code, format, args);
    va_end(args);
    reterr->errnum = 0;
    return code;
}

int mu_wrap(struct muster_error *reterr, int code, const char *format, ...)
{
    char inner[sizeof reterr->text];
    va_list args;
    size_t used;

    if (reterr == NULL)
        return code;
    memcpy(inner, reterr->text, sizeof inner);
    inner[sizeof inner - 1] = '\0'; /* the failed call may have set no text */
    va_start(args, format);
    set_text(reterr, code, format, args);
    va_end(args);
    used = strlen(reterr->text);
    (void)snprintf(reterr->text + used, sizeof reterr->text - used, ": %s", inner);
    return code;
}

static int code_of_errno(int errnum)
{
    switch (errnum) {
    case ENOMEM:
        return MUSTER_ENOMEM;
    case EINVAL:
        return MUSTER_EINVAL;
    case ETIMEDOUT:
        return MUSTER_ETIMEOUT;
    case EADDRINUSE:
        return MUSTER_EADDRINUSE;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return MUSTER_ECONNECT;
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
        return MUSTER_ELOST;
    default:
        return MUSTER_ESYSTEM;
    }
}

int mu_fail_errno(struct muster_error *reterr, int errnum, const char *format, ...)
{
    int code = code_of_errno(errnum);
    va_list args;
    size_t used;

    if (reterr == NULL)
        return code;
    va_start(args, format);
    set_text(reterr, code, format, args);
    va_end(args);
    used = strlen(reterr->text);
    (void)snprintf(reterr->text + used, sizeof reterr->text - used, ": %s", strerror(errnum));
    reterr->errnum = errnum;
    return code;
}

int mu_settle(const char *what, int rc, struct muster_error *error)
{
    if (rc > 0)
        (void)mu_fail(error, MUSTER_EINTERNAL, "%s returned %d; expected 0 or an error", what, rc);
    else if (rc < 0 && error->text[0] == '\0') /* it need not say why */
        (void)mu_fail(error, rc, "%s", muster_error_text(rc));
    error->code = rc > 0 ? MUSTER_EINTERNAL : rc;
    return error->code;
}
