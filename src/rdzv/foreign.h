/* The texts about a value that another program has written to one of our keys. Pure. */
#ifndef MU_RDZV_FOREIGN_H
#define MU_RDZV_FOREIGN_H

#include "base/slice.h"

#define MU_FOREIGN_TEXT_MAX 512
/* "somebody has overwritten the restart budget in 'muster.job/budget' (7 bytes: 'garbage'); putting it back" */
void mu_foreign_say(char text[static MU_FOREIGN_TEXT_MAX], const char *what, const char *key, struct mu_slice value,
                    const char *next);

#endif
