/* What the readers of etcd's two APIs share. */
#include "kv/etcd_json.h"

#include "base/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLE_MAX = 120 };

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
    return mu_fail(reterr, MUSTER_EPROTOCOL, "HTTP %u, not a JSON object: '%s'", status,
                   mu_words_plain(first_line(body), sample, sizeof sample));
}

void mu_etcd_json_wrong(struct mu_etcd_reader *r, const char *path, const char *name, const char *what)
{
    if (r->rc == 0)
        r->rc = mu_fail(r->error, MUSTER_EPROTOCOL, "'%s%s' is %s", path, name, what);
}

static json_t *get(const struct mu_etcd_reader *r, const json_t *object, const char *name)
{
    return r->rc == 0 ? json_object_get(object, name) : NULL;
}

/* NULL: it is missing, or not `right`. */
static json_t *checked(struct mu_etcd_reader *r, json_t *value, const char *path, const char *name, bool right,
                       const char *otherwise)
{
    if (value == NULL || right)
        return value;
    mu_etcd_json_wrong(r, path, name, otherwise);
    return NULL;
}

/* Digits, perhaps with a sign, within the range; as text or not. */
static bool is_int(const json_t *value)
{
    const char *text = json_string_value(value), *digits;
    char *end;

    if (text == NULL)
        return json_is_integer(value);
    digits = text + (text[0] == '-');
    errno = 0;
    (void)strtoll(text, &end, 10);
    return errno == 0 && digits[0] >= '0' && digits[0] <= '9' && end == text + json_string_length(value);
}

static bool is_id(const json_t *value)
{
    const char *text = json_string_value(value);
    char *end;

    if (text == NULL)
        return json_is_integer(value) && json_integer_value(value) >= 0;
    errno = 0;
    (void)strtoull(text, &end, 10);
    return errno == 0 && text[0] >= '0' && text[0] <= '9' && end == text + json_string_length(value);
}

int64_t mu_etcd_json_int(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name)
{
    json_t *value = get(r, object, name);

    value = checked(r, value, path, name, is_int(value), "not a number of 64 bits");
    return json_is_string(value) ? strtoll(json_string_value(value), NULL, 10) : json_integer_value(value);
}

uint64_t mu_etcd_json_id(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name)
{
    json_t *value = get(r, object, name);

    value = checked(r, value, path, name, is_id(value), "not a number of 64 bits, not negative");
    return json_is_string(value) ? strtoull(json_string_value(value), NULL, 10) : (uint64_t)json_integer_value(value);
}

bool mu_etcd_json_bool(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name)
{
    json_t *value = get(r, object, name);

    return json_is_true(checked(r, value, path, name, json_is_boolean(value), "not true or false"));
}

struct mu_slice mu_etcd_json_text(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name)
{
    json_t *value = get(r, object, name);

    value = checked(r, value, path, name, json_is_string(value), "not text");
    return value == NULL ? mu_slice("", 0) : mu_slice(json_string_value(value), json_string_length(value));
}

json_t *mu_etcd_json_object(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name)
{
    json_t *value = get(r, object, name);

    return checked(r, value, path, name, json_is_object(value), "not an object");
}

json_t *mu_etcd_json_array(struct mu_etcd_reader *r, const json_t *object, const char *path, const char *name)
{
    json_t *value = get(r, object, name);

    return checked(r, value, path, name, json_is_array(value), "not an array");
}
