/* Sets of CPU numbers (or of NUMA nodes), and the lists in which the kernel writes them: "0-3,8". */
#ifndef MU_BASE_CPUS_H
#define MU_BASE_CPUS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define MU_CPUS_MAX 8192u /* as many as Linux can be built for */
#define MU_CPUS_WORD_BITS (sizeof(unsigned long) * CHAR_BIT)

struct mu_cpus { /* zeroed: empty. In the form of the kernel's masks */
    unsigned long words[MU_CPUS_MAX / MU_CPUS_WORD_BITS];
};

void mu_cpus_add(struct mu_cpus *set, unsigned cpu); /* below MU_CPUS_MAX */
bool mu_cpus_has(const struct mu_cpus *set, unsigned cpu);
unsigned mu_cpus_count(const struct mu_cpus *set);
/* The lowest one from `from` on; MU_CPUS_MAX: there is none. */
unsigned mu_cpus_next(const struct mu_cpus *set, unsigned from);

#define MU_CPUS_EACH(cpu, set)                                                                                         \
    for (unsigned cpu = mu_cpus_next(set, 0); (cpu) < MU_CPUS_MAX; (cpu) = mu_cpus_next(set, (cpu) + 1))

/* Reads a list. Blanks around it do not matter. False: it is not a list, or has numbers that are too high. */
bool mu_cpus_parse(const char *list, struct mu_cpus *ret_set);
/* Writes the list into `room`, and returns `room`. What does not fit ends with "...". `size` is at least 4. */
const char *mu_cpus_text(const struct mu_cpus *set, char *room, size_t size);

#endif
