/* What a dynamic handler makes of the document and of a round. Pure; dynamic_uv.c asks. */
#ifndef MU_HANDLER_DYNAMIC_H
#define MU_HANDLER_DYNAMIC_H

#include "handler/handler.h"
#include "handler/inquiry.h"
#include "rdzv/rdzv.h"

#define MU_DYNAMIC_PARK_MS 300000 /* then the bell is parked anew */
#define MU_DYNAMIC_NAMED_MAX 64   /* nodes that the owner is told by name */

struct mu_kv_ops;
struct mu_kv_request;

/* Where the back end is, once it is found. Its texts live as long as the handler. */
struct mu_dynamic_place {
    const char *store_addr; /* where workers reach the rendezvous store; NULL: it is no TCPStore */
    uint16_t store_port;
    const char *hosted_by; /* the node that says it hosts the store; empty: none does, NULL: not known */
};

/* Fills in the request for the effect, but for its value and token. Returns the type of its answer. */
enum mu_rdzv_event_type mu_dynamic_ask(const struct mu_rdzv_effect *effect, const struct mu_dynamic_config *config,
                                       struct mu_kv_request *request);
/* ... and the answer. Borrows from the request. */
struct mu_rdzv_event mu_dynamic_answer(uint64_t id, enum mu_rdzv_event_type type, const struct mu_kv_request *request);
struct mu_rdzv_event mu_dynamic_no_memory(uint64_t id); /* the answer to a request that could not be made */
/* The same for the inquiry: ASK_HOST, WRITE_BOARD or LEAVE_BOARD. */
enum mu_inquiry_event_type mu_dynamic_inquire(enum mu_inquiry_effect_type type, const struct mu_dynamic_config *config,
                                              struct mu_kv_request *request);

/* How long the back end is looked for. */
uint64_t mu_dynamic_find_ms(const struct mu_dynamic_config *config);
/* Whether a back end that answered a first read with this code is there. If not, its error becomes what the owner is
 * told. */
bool mu_dynamic_is_there(int rc, struct muster_error *error);

/* Which nodes of the document the owner is told of with WAITING and PROGRESS. Returns how many. */
size_t mu_dynamic_named(const struct mu_doc *doc, enum muster_rdzv_event_type type,
                        struct mu_node nodes[static MU_DYNAMIC_NAMED_MAX]);
/* Puts the lost into `nodes`: last those that wait for the next round, *ret_waiting of them. Returns how the others
 * were lost: by `silence` (mu_handler.loss_cause), or with the store. */
const char *mu_dynamic_sort_lost(const struct mu_doc *doc, struct mu_rdzv_nodes lost, const char *silence,
                                 bool store_refuses, struct mu_node *nodes, size_t *ret_waiting);

int64_t mu_dynamic_local_id(const struct mu_dynamic_config *config, uint64_t random);
bool mu_dynamic_is_old(const struct mu_rdzv_world *world); /* PyTorch's agents, if any, use the keys of 1.13 */

bool mu_dynamic_shares_store(const struct mu_dynamic_config *config, const struct mu_dynamic_place *place);
/* Of its machines. These borrow. The name of `me` ends with a NUL. */
struct mu_rdzv_config mu_dynamic_rdzv_config(const struct mu_dynamic_config *config,
                                             const struct mu_dynamic_place *place, const struct mu_node *me,
                                             const struct mu_kv_ops *kv, const uint64_t random[static 3]);
struct mu_inquiry_config mu_dynamic_inquiry_config(const struct mu_dynamic_config *config, const struct mu_node *me,
                                                   const struct mu_kv_ops *kv);
struct mu_boot_config mu_dynamic_boot_config(const struct mu_dynamic_config *config);
/* What the boot is told of the round; `rank0` is room for a text of it. */
struct mu_boot_start mu_dynamic_boot_start(const struct mu_rdzv_world *world, struct mu_slice own_name,
                                           const struct mu_dynamic_config *config, const struct mu_dynamic_place *place,
                                           char rank0[static MU_NODE_TEXT_MAX]);

/* What every dynamic rendezvous reads. These borrow from `params`. */
int mu_dynamic_read_params(const struct muster_rdzv_params *params, struct mu_dynamic_config *config,
                           struct muster_error *reterr);
/* ... and on a back end of this library, which knows no other options than its own. */
int mu_dynamic_read_config(const char *backend, const struct muster_rdzv_params *params,
                           struct mu_dynamic_config *ret_config, struct muster_error *reterr);

#endif
