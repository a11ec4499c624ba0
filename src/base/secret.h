/* Texts that users give and that errors and logs show, without the secrets in them. Pure. */
#ifndef MU_BASE_SECRET_H
#define MU_BASE_SECRET_H

#include "base/slice.h"

#include <stdbool.h>

/* Whether the value of an option with this name is secret: the name contains "password", "token" or the like. */
bool mu_secret_is_key(struct mu_slice key);

#define MU_SECRET_SHOWN_MAX 208 /* room enough for an error */
/* An endpoint, a URL or options, as they may be shown: user and password in front of a host, and the values of secret
 * options, are three asterisks. It hides too much rather than too little, for such texts are shown because something is
 * wrong with them. A text that does not fit is cut and ends with "...". Returns `shown`. */
const char *mu_secret_hide(struct mu_slice text, char *shown, size_t room);

#endif
