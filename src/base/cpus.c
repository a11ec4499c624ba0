/* Sets of CPU numbers. */
#include "base/cpus.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mu_cpus_add(struct mu_cpus *set, unsigned cpu)
{
    assert(cpu < MU_CPUS_MAX);
    set->words[cpu / MU_CPUS_WORD_BITS] |= 1ul << cpu % MU_CPUS_WORD_BITS;
}

bool mu_cpus_has(const struct mu_cpus *set, unsigned cpu)
{
    return cpu < MU_CPUS_MAX && (set->words[cpu / MU_CPUS_WORD_BITS] >> cpu % MU_CPUS_WORD_BITS & 1) != 0;
}

unsigned mu_cpus_count(const struct mu_cpus *set)
{
    unsigned count = 0;

    for (size_t i = 0; i < sizeof set->words / sizeof set->words[0]; i++)
        count += (unsigned)__builtin_popcountl(set->words[i]);
    return count;
}

unsigned mu_cpus_next(const struct mu_cpus *set, unsigned from)
{
    while (from < MU_CPUS_MAX) {
        unsigned long rest = set->words[from / MU_CPUS_WORD_BITS] >> from % MU_CPUS_WORD_BITS;

        if (rest != 0)
            return from + (unsigned)__builtin_ctzl(rest);
        from += (unsigned)(MU_CPUS_WORD_BITS - from % MU_CPUS_WORD_BITS);
    }
    return MU_CPUS_MAX;
}

static bool parse_number(const char **at, unsigned *ret_number)
{
    unsigned number = 0;

    if (**at < '0' || **at > '9')
        return false;
    for (; **at >= '0' && **at <= '9'; (*at)++) {
        number = number * 10 + (unsigned)(**at - '0');
        if (number >= MU_CPUS_MAX)
            return false;
    }
    *ret_number = number;
    return true;
}

bool mu_cpus_parse(const char *list, struct mu_cpus *ret_set)
{
    static const char blanks[] = " \t\n";
    struct mu_cpus set = { 0 };

    list += strspn(list, blanks);
    while (*list != '\0') {
        unsigned first, last;

        if (!parse_number(&list, &first))
            return false;
        last = first;
        if (*list == '-' && (list++, !parse_number(&list, &last)))
            return false;
        if (last < first)
            return false;
        for (unsigned cpu = first; cpu <= last; cpu++)
            mu_cpus_add(&set, cpu);
        if (*list == ',') {
            list++;
            if (*list < '0' || *list > '9')
                return false;
        } else {
            list += strspn(list, blanks);
            if (*list != '\0')
                return false;
        }
    }
    *ret_set = set;
    return true;
}

const char *mu_cpus_text(const struct mu_cpus *set, char *room, size_t size)
{
    size_t len = 0;

    assert(size >= sizeof "...");
    room[0] = '\0';
    for (unsigned first = mu_cpus_next(set, 0); first < MU_CPUS_MAX;) {
        char part[24];
        unsigned last = first;
        int part_len;

        while (mu_cpus_has(set, last + 1))
            last++;
        part_len = last == first ? snprintf(part, sizeof part, "%s%u", len > 0 ? "," : "", first)
                                 : snprintf(part, sizeof part, "%s%u-%u", len > 0 ? "," : "", first, last);
        first = mu_cpus_next(set, last + 1);
        if (len + (size_t)part_len + (first < MU_CPUS_MAX ? sizeof "..." : 1) > size) {
            (void)strcpy(room + len, "...");
            break;
        }
        (void)strcpy(room + len, part);
        len += (size_t)part_len;
    }
    return room;
}
