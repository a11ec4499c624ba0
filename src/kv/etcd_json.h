/* What the readers of etcd's two APIs share. */
#ifndef MU_KV_ETCD_JSON_H
#define MU_KV_ETCD_JSON_H

#include "base/error.h"
#include "base/slice.h"

#include <jansson.h>
#include <stdint.h>

/* The JSON object of an answer, MUSTER_ENOMEM, or MUSTER_EPROTOCOL with its status and how it begins: "HTTP 404,
 * not a JSON object: '404 page not found'". */
int mu_etcd_json_load(unsigned status, struct mu_slice body, json_t **ret_root, struct muster_error *reterr);

/* Reads fields of objects, and keeps its first failure: after that, everything it reads is 0, false, empty or NULL. */
struct mu_etcd_reader {
    int rc;
    struct muster_error *error;
};

/* A field: 0, false, empty or NULL if it is missing; MUSTER_EPROTOCOL, naming it, if it has another type. `path` is put
 * in front of its name ("node."). Numbers may be texts, too. Texts, objects and arrays are borrowed. */
int64_t mu_etcd_json_int(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name);
uint64_t mu_etcd_json_id(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name);
bool mu_etcd_json_bool(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name);
struct mu_slice mu_etcd_json_text(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name);
json_t *mu_etcd_json_object(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name);
json_t *mu_etcd_json_array(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name);
/* MUSTER_EPROTOCOL: 'PATH NAME' is `what`, unless something has failed before. */
void mu_etcd_json_wrong(struct mu_etcd_reader *r, const char *path, const char *name, const char *what);

#endif
