/* What the readers of etcd's two APIs share. */
#include "kv/etcd_json.h"

#include "base/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLE_MAX = 120, NUMBER_MAX = 24 };

static struct mu_slice first_line(struct mu_slice body)
{
    const char *end = body.len == 0 ? NULL : memchr(body.data, '\n', body.len);

    return end == NULL ? body : mu_slice(body.data, (size_t)(end - body.data));
}

int mu_etcd_json_load(unsigned status, struct mu_slice body, json_t **ret_root, struct muster_error *reterr)
{
    char sample[SAMPLE_MAX];
    json_error_t why;
    json_t *root;

    errno = 0;
    root = body.len == 0 ? NULL : json_loadb(body.data, body.len, 0, &why);
    /* Without memory jansson mostly returns no error, or says that it is no JSON; a text may even lack a part. So
     * malloc() is asked. */
    if (errno == ENOMEM) {
        json_decref(root);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an answer of %zu bytes", body.len);
    }
    if (json_is_object(root)) {
        *ret_root = root;
        return 0;
    }
    json_decref(root);
    if (body.len == 0)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "HTTP %u, an empty answer", status);
    return mu_fail(reterr, MUSTER_EPROTOCOL, "HTTP %u, no JSON object but '%s'", status,
                   mu_words_plain(first_line(body), sample, sizeof sample));
}

static int wrong(const char *path, const char *name, const char *kind, struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_EPROTOCOL, "'%s%s' is not %s", path, name, kind);
}

/* All digits, perhaps a sign. */
static bool number_text(const json_t *text, char number[static NUMBER_MAX])
{
    size_t len = json_string_length(text), start;

    if (len == 0 || len >= NUMBER_MAX)
        return false;
    memcpy(number, json_string_value(text), len);
    number[len] = '\0';
    start = number[0] == '-' ? 1 : 0;
    return len > start && strspn(number + start, "0123456789") == len - start;
}

int mu_etcd_json_int(const json_t *object, const char *path, const char *name, int64_t *ret_value,
                     struct muster_error *reterr)
{
    const json_t *value = json_object_get(object, name);
    char number[NUMBER_MAX];

    *ret_value = 0;
    if (value == NULL)
        return 0;
    if (json_is_integer(value)) {
        *ret_value = json_integer_value(value);
        return 0;
    }
    errno = 0;
    if (json_is_string(value) && number_text(value, number)) {
        *ret_value = strtoll(number, NULL, 10);
        if (errno == 0)
            return 0;
    }
    return wrong(path, name, "a number of 64 bits", reterr);
}

int mu_etcd_json_id(const json_t *object, const char *path, const char *name, uint64_t *ret_value,
                    struct muster_error *reterr)
{
    const json_t *value = json_object_get(object, name);
    char number[NUMBER_MAX];

    *ret_value = 0;
    if (value == NULL)
        return 0;
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *ret_value = (uint64_t)json_integer_value(value);
        return 0;
    }
    errno = 0;
    if (json_is_string(value) && number_text(value, number) && number[0] != '-') {
        *ret_value = strtoull(number, NULL, 10);
        if (errno == 0)
            return 0;
    }
    return wrong(path, name, "a number of 64 bits, not negative", reterr);
}

int mu_etcd_json_bool(const json_t *object, const char *path, const char *name, bool *ret_value,
                      struct muster_error *reterr)
{
    const json_t *value = json_object_get(object, name);

    *ret_value = json_is_true(value);
    return value == NULL || json_is_boolean(value) ? 0 : wrong(path, name, "true or false", reterr);
}

int mu_etcd_json_text(const json_t *object, const char *path, const char *name, struct mu_slice *ret_value,
                      struct muster_error *reterr)
{
    const json_t *value = json_object_get(object, name);

    *ret_value = mu_slice("", 0);
    if (value == NULL)
        return 0;
    if (!json_is_string(value))
        return wrong(path, name, "text", reterr);
    *ret_value = mu_slice(json_string_value(value), json_string_length(value));
    return 0;
}

int mu_etcd_json_object(const json_t *object, const char *path, const char *name, json_t **ret_value,
                        struct muster_error *reterr)
{
    *ret_value = json_object_get(object, name);
    return *ret_value == NULL || json_is_object(*ret_value) ? 0 : wrong(path, name, "an object", reterr);
}

int mu_etcd_json_array(const json_t *object, const char *path, const char *name, json_t **ret_value,
                       struct muster_error *reterr)
{
    *ret_value = json_object_get(object, name);
    return *ret_value == NULL || json_is_array(*ret_value) ? 0 : wrong(path, name, "an array", reterr);
}
