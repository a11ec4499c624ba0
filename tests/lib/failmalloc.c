/* The wrappers that --wrap puts in place of the allocator. See failmalloc.h. */
#include "failmalloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

/* NOLINTBEGIN(bugprone-reserved-identifier): ld's --wrap chooses these names */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t len);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t len);

static atomic_ulong alloc_count; /* since the last fail_alloc_at() */
static atomic_ulong fail_at;     /* 0: never */

void fail_alloc_at(unsigned long nth)
{
    atomic_store(&fail_at, 0);
    atomic_store(&alloc_count, 0);
    atomic_store(&fail_at, nth);
}

bool fail_alloc_hit(void)
{
    unsigned long nth = atomic_load(&fail_at);

    return nth != 0 && atomic_load(&alloc_count) >= nth;
}

unsigned long fail_alloc_count(void)
{
    return atomic_load(&alloc_count);
}

bool fail_alloc_next(unsigned long *nth)
{
    if (*nth != 0 && !fail_alloc_hit()) {
        fail_alloc_at(0);
        return false;
    }
    fail_alloc_at(++*nth);
    return true;
}

/* Counts one allocation; true if it is the one that has to fail. */
static bool fails(void)
{
    unsigned long index = atomic_fetch_add(&alloc_count, 1) + 1;

    if (index != atomic_load(&fail_at))
        return false;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return fails() ? NULL : __real_realloc(old, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t len)
{
    return fails() ? NULL : __real_strndup(text, len);
}
/* NOLINTEND(bugprone-reserved-identifier) */
