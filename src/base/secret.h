/* Texts that users give and that errors and logs show: what is somebody's secret in them is not shown. Pure. */
#ifndef MU_BASE_SECRET_H
#define MU_BASE_SECRET_H

#include "base/slice.h"

#include <stdbool.h>

/* Whether the value of an option of that name is nobody's business: its name has "password", "token" or the like in it. */
bool mu_secret_is_key(struct mu_slice key);

#define MU_SECRET_SHOWN_MAX 208 /* room enough for an error */
/* An endpoint, a URL or options, as they may be shown: user and password in front of a host, and the values of secret options,
 * are three asterisks. Rather too much is hidden than too little: such texts are shown because there is something wrong with
 * them. Cut where there is no more room, and then it ends with "...". Returns `shown`. */
const char *mu_secret_hide(struct mu_slice text, char *shown, size_t room);

#endif
