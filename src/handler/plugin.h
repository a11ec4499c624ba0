/* Back ends loaded from shared objects. A loaded back end stays for the life of the process. */
#ifndef MU_HANDLER_PLUGIN_H
#define MU_HANDLER_PLUGIN_H

#include "handler/handler.h"

struct mu_plugin {
    struct mu_plugin *next;
    const struct muster_backend_1 *backend;
    char *file;
};

/* plugin_load.c: the back end of that name; NULL: it is not loaded, MUSTER_EINVAL. They are never taken away. */
const struct mu_plugin *mu_plugin_find(const char *name, struct muster_error *reterr);

/* plugin_load.c: a blocking handler of the back end `ctx`, a struct mu_plugin. Registries know a back end by this
 * function and that context. */
muster_rdzv_creator mu_plugin_create;

/* plugin_uv.c: an event-driven handler of the loaded back end that the parameters name: in a process a name belongs to
 * one object. */
mu_handler_start mu_plugin_start;

#endif
