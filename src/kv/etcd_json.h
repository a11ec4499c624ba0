/* What the readers of etcd's two APIs share. */
#ifndef MU_KV_ETCD_JSON_H
#define MU_KV_ETCD_JSON_H

#include "base/error.h"
#include "base/slice.h"

#include <jansson.h>
#include <stdint.h>

/* The JSON object of an answer, MUSTER_ENOMEM, or MUSTER_EPROTOCOL with its status and how it begins: "HTTP 404, no
 * JSON but '404 page not found'". */
int mu_etcd_json_load(unsigned status, struct mu_slice body, json_t **ret_root, struct muster_error *reterr);

/* A field of an object: 0, false or empty if it is missing; MUSTER_EPROTOCOL, naming it, if it has another type. `path`
 * is put in front of its name ("node."). Numbers may be texts, too. */
int mu_etcd_json_int(const json_t *object, const char *path, const char *name, int64_t *ret_value,
                     struct muster_error *reterr);
int mu_etcd_json_id(const json_t *object, const char *path, const char *name, uint64_t *ret_value,
                    struct muster_error *reterr); /* the whole range of 64 bits */
int mu_etcd_json_bool(const json_t *object, const char *path, const char *name, bool *ret_value,
                      struct muster_error *reterr);
/* Borrows from the object. */
int mu_etcd_json_text(const json_t *object, const char *path, const char *name, struct mu_slice *ret_value,
                      struct muster_error *reterr);
/* NULL if it is not there. */
int mu_etcd_json_object(const json_t *object, const char *path, const char *name, json_t **ret_value,
                        struct muster_error *reterr);
int mu_etcd_json_array(const json_t *object, const char *path, const char *name, json_t **ret_value,
                       struct muster_error *reterr);

#endif
