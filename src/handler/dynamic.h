/* What a dynamic handler makes of the document and of a round. Pure; dynamic_uv.c asks. */
#ifndef MU_HANDLER_DYNAMIC_H
#define MU_HANDLER_DYNAMIC_H

#include "handler/handler.h"
#include "rdzv/rdzv.h"

#define MU_DYNAMIC_PARK_MS 300000 /* then the bell is parked anew */
#define MU_DYNAMIC_CAUSE_MAX 64

/* How long the back end has for a request. */
uint64_t mu_dynamic_timeout_ms(const struct mu_rdzv_effect *effect, const struct mu_rdzv_settings *settings,
                               uint64_t request_timeout_ms);

/* How long the back end is looked for. */
uint64_t mu_dynamic_find_ms(const struct mu_dynamic_config *config);
/* Whether a back end that answered a first read with this code is there. */
bool mu_dynamic_is_there(int rc);

/* Puts the lost into `nodes`: last those that wait for the next round, *ret_waiting of them. Returns how the others
 * were lost: `cause`, or a constant. */
const char *mu_dynamic_sort_lost(const struct mu_doc *doc, struct mu_rdzv_nodes lost, uint64_t death_age_ms,
                                 bool store_refuses, struct mu_node *nodes, size_t *ret_waiting,
                                 char cause[static MU_DYNAMIC_CAUSE_MAX]);

bool mu_dynamic_is_old(const struct mu_rdzv_world *world); /* PyTorch's agents, if any, use the keys of 1.13 */

/* What the boot is told of the round; `rank0` is room for a text of it. `store_addr`: where workers reach the
 * rendezvous store, which agents share with them; NULL: they do not. */
struct mu_boot_start mu_dynamic_boot_start(const struct mu_rdzv_world *world, struct mu_slice own_name,
                                           const char *store_addr, uint16_t store_port,
                                           char rank0[static MU_NODE_TEXT_MAX]);

#endif
