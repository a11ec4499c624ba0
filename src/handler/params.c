/* Parameters of a rendezvous: back end, endpoint, run id, limits, and options by name whose values are text, integer,
 * truth or number. They own all their texts. Reading a value as a truth or an integer follows Python's rules. */
#include "base/arena.h"
#include "base/number.h"
#include "base/secret.h"
#include "handler/handler.h"

#include <assert.h>
#include <stdlib.h>

enum {
    BACKEND_BYTES_MAX = 255,
    ENDPOINT_BYTES_MAX = 4096,
    LOCAL_ADDR_BYTES_MAX = 255, /* fits muster_store_info.master_addr */
    KEY_BYTES_MAX = 255,
    VALUE_BYTES_MAX = 65536,
    OPTIONS_MAX = 256,
};

struct option {
    char *key;
    struct muster_value value; /* its text, if it has one, is ours */
};

struct options {
    struct option *items;
    size_t count;
};

struct muster_rdzv_params {
    struct mu_arena texts; /* these are in it */
    const char *backend, *endpoint, *run_id;
    const char *local_addr; /* NULL: none */
    int64_t nodes_min, nodes_max;
    struct options options;
};

static int no_memory(struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_ENOMEM, "rendezvous parameters: no memory");
}

static int check_len(const char *what, const char *text, size_t len_max, struct muster_error *reterr)
{
    if (text != NULL && strlen(text) > len_max)
        return mu_fail(reterr, MUSTER_ELIMIT, "%s '%.40s...': it is %zu bytes long, more than %zu", what, text,
                       strlen(text), len_max);
    return 0;
}

/* ---- Options ---- */

static void option_done(struct option *option)
{
    free(option->key);
    free((char *)option->value.text);
}

static void options_done(struct options *options)
{
    for (size_t i = 0; i < options->count; i++)
        option_done(&options->items[i]);
    free(options->items);
    *options = (struct options){ 0 };
}

static struct option *options_find(const struct options *options, const char *key)
{
    for (size_t i = 0; i < options->count; i++) {
        if (strcmp(options->items[i].key, key) == 0)
            return &options->items[i];
    }
    return NULL;
}

static int options_grow(struct options *options, const char *key, struct muster_error *reterr)
{
    struct option *items;

    if (options->count == OPTIONS_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "option '%s': there are %d options already, and no more are allowed", key,
                       OPTIONS_MAX);
    items = realloc(options->items, (options->count + 1) * sizeof *items);
    if (items == NULL)
        return no_memory(reterr);
    options->items = items;
    return 0;
}

/* Takes `option` if this succeeds. */
static int options_put(struct options *options, struct option option, struct muster_error *reterr)
{
    struct option *there = options_find(options, option.key);
    int rc;

    if (there != NULL) {
        option_done(there);
        *there = option;
        return 0;
    }
    rc = options_grow(options, option.key, reterr);
    if (rc == 0) {
        assert(options->items != NULL);
        options->items[options->count++] = option;
    }
    return rc;
}

/* Copies key and value. */
static int options_set(struct options *options, const char *key, struct muster_value value, struct muster_error *reterr)
{
    struct option option = { .value = value };
    bool is_text = value.kind == MUSTER_VALUE_TEXT;
    int rc;

    option.key = strdup(key);
    option.value.text = is_text ? strdup(value.text) : NULL;
    if (option.key == NULL || (is_text && option.value.text == NULL))
        rc = no_memory(reterr);
    else
        rc = options_put(options, option, reterr);
    if (rc < 0)
        option_done(&option);
    return rc;
}

static int options_add(struct options *options, const struct options *from, struct muster_error *reterr)
{
    int rc = 0;

    for (size_t i = 0; i < from->count && rc == 0; i++)
        rc = options_set(options, from->items[i].key, from->items[i].value, reterr);
    return rc;
}

/* ---- The parameters themselves ---- */

static int check(const char *backend, const char *endpoint, const char *run_id, int64_t min_nodes, int64_t max_nodes,
                 const char *local_addr, struct muster_error *reterr)
{
    int rc;

    if (backend == NULL || backend[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "the name of the rendezvous back end is empty");
    rc = mu_rdzv_check_nodes(min_nodes, max_nodes, reterr);
    if (rc == 0)
        rc = check_len("rendezvous back end", backend, BACKEND_BYTES_MAX, reterr);
    if (rc == 0)
        rc = check_len("rendezvous endpoint", endpoint, ENDPOINT_BYTES_MAX, reterr);
    if (rc == 0)
        rc = check_len("run id", run_id, MU_RDZV_RUN_ID_MAX, reterr);
    if (rc == 0)
        rc = check_len("local address", local_addr, LOCAL_ADDR_BYTES_MAX, reterr);
    return rc;
}

int muster_rdzv_params_new(const char *backend, const char *endpoint, const char *run_id, int64_t min_nodes,
                           int64_t max_nodes, const char *local_addr, struct muster_rdzv_params **ret_params,
                           struct muster_error *reterr)
{
    struct muster_rdzv_params *params;
    bool full = false;
    int rc = check(backend, endpoint, run_id, min_nodes, max_nodes, local_addr, reterr);

    if (rc < 0)
        return rc;
    params = calloc(1, sizeof *params);
    if (params == NULL)
        return no_memory(reterr);
    if (local_addr != NULL && local_addr[0] == '\0')
        local_addr = NULL;
    params->backend = mu_arena_text(&params->texts, backend, &full);
    params->endpoint = mu_arena_text(&params->texts, endpoint == NULL ? "" : endpoint, &full);
    params->run_id = mu_arena_text(&params->texts, run_id == NULL ? "" : run_id, &full);
    params->local_addr = mu_arena_text(&params->texts, local_addr, &full);
    params->nodes_min = min_nodes;
    params->nodes_max = max_nodes;
    if (full) {
        muster_rdzv_params_free(params);
        return no_memory(reterr);
    }
    *ret_params = params;
    return 0;
}

int muster_rdzv_params_copy(const struct muster_rdzv_params *params, struct muster_rdzv_params **ret_params,
                            struct muster_error *reterr)
{
    struct muster_rdzv_params *copy = NULL;
    int rc = muster_rdzv_params_new(params->backend, params->endpoint, params->run_id, params->nodes_min,
                                    params->nodes_max, params->local_addr, &copy, reterr);

    if (rc == 0)
        rc = options_add(&copy->options, &params->options, reterr);
    if (rc < 0)
        muster_rdzv_params_free(copy);
    else
        *ret_params = copy;
    return rc;
}

void muster_rdzv_params_free(struct muster_rdzv_params *params)
{
    if (params == NULL)
        return;
    options_done(&params->options);
    mu_arena_done(&params->texts);
    free(params);
}

const char *muster_rdzv_params_backend(const struct muster_rdzv_params *params)
{
    return params->backend;
}

const char *muster_rdzv_params_endpoint(const struct muster_rdzv_params *params)
{
    return params->endpoint;
}

const char *muster_rdzv_params_run_id(const struct muster_rdzv_params *params)
{
    return params->run_id;
}

const char *muster_rdzv_params_local_addr(const struct muster_rdzv_params *params)
{
    return params->local_addr;
}

int64_t muster_rdzv_params_min_nodes(const struct muster_rdzv_params *params)
{
    return params->nodes_min;
}

int64_t muster_rdzv_params_max_nodes(const struct muster_rdzv_params *params)
{
    return params->nodes_max;
}

/* ---- Setting options ---- */

static int set(struct muster_rdzv_params *params, const char *key, struct muster_value value,
               struct muster_error *reterr)
{
    int rc;

    if (key == NULL || key[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "the name of a rendezvous option is empty");
    rc = check_len("rendezvous option", key, KEY_BYTES_MAX, reterr);
    return rc < 0 ? rc : options_set(&params->options, key, value, reterr);
}

int muster_rdzv_params_set_text(struct muster_rdzv_params *params, const char *key, const char *value,
                                struct muster_error *reterr)
{
    int rc;

    if (value == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "rendezvous option '%s': no text is given", key == NULL ? "" : key);
    rc = check_len("value of a rendezvous option", value, VALUE_BYTES_MAX, reterr);
    return rc < 0 ? rc : set(params, key, (struct muster_value){ .kind = MUSTER_VALUE_TEXT, .text = value }, reterr);
}

int muster_rdzv_params_set_int(struct muster_rdzv_params *params, const char *key, int64_t value,
                               struct muster_error *reterr)
{
    return set(params, key, (struct muster_value){ .kind = MUSTER_VALUE_INT, .integer = value }, reterr);
}

int muster_rdzv_params_set_bool(struct muster_rdzv_params *params, const char *key, bool value,
                                struct muster_error *reterr)
{
    return set(params, key, (struct muster_value){ .kind = MUSTER_VALUE_BOOL, .boolean = value }, reterr);
}

int muster_rdzv_params_set_float(struct muster_rdzv_params *params, const char *key, double value,
                                 struct muster_error *reterr)
{
    return set(params, key, (struct muster_value){ .kind = MUSTER_VALUE_FLOAT, .number = value }, reterr);
}

static int on_option(void *ctx, struct mu_slice key, struct mu_slice value, struct muster_error *reterr)
{
    struct option option = { .value = { .kind = MUSTER_VALUE_TEXT } };
    int rc;

    if (key.len > KEY_BYTES_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "rendezvous option '%.40s...': it is %zu bytes long, more than %d",
                       key.data, key.len, KEY_BYTES_MAX);
    option.key = strndup(key.data, key.len);
    option.value.text = strndup(value.data, value.len); /* no longer than what it was read from, which is bounded */
    rc = option.key == NULL || option.value.text == NULL ? no_memory(reterr) : options_put(ctx, option, reterr);
    if (rc < 0)
        option_done(&option);
    return rc;
}

int muster_rdzv_params_set_options(struct muster_rdzv_params *params, const char *options, struct muster_error *reterr)
{
    struct options all = { 0 }; /* as they will be: all of the text is taken, or nothing */
    int rc = options_add(&all, &params->options, reterr);

    if (rc == 0)
        rc = mu_rdzv_options_parse(options, on_option, &all, reterr);
    options_done(rc < 0 ? &all : &params->options);
    if (rc == 0)
        params->options = all;
    return rc;
}

/* ---- Reading options ---- */

bool muster_rdzv_params_get(const struct muster_rdzv_params *params, const char *key, struct muster_value *ret_value)
{
    const struct option *option = options_find(&params->options, key);

    if (option != NULL)
        *ret_value = option->value;
    return option != NULL;
}

const char *mu_rdzv_params_key(const struct muster_rdzv_params *params, size_t index)
{
    return index < params->options.count ? params->options.items[index].key : NULL;
}

int mu_rdzv_params_add_all(struct muster_rdzv_params *params, const struct muster_rdzv_params *from,
                           struct muster_error *reterr)
{
    return options_add(&params->options, &from->options, reterr);
}

static int lower(int c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}

/* In every locale the same, as strcasecmp() would not be. */
static bool is_word(const char *text, const char *word)
{
    while (*word != '\0' && lower(*text) == *word) {
        text++;
        word++;
    }
    return *word == '\0' && *text == '\0';
}

static bool text_as_bool(const char *text, bool *ret_value)
{
    static const char *const words[][2] = {
        { "0", "1" }, { "false", "true" }, { "f", "t" }, { "no", "yes" }, { "n", "y" }
    };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        *ret_value = is_word(text, words[i][1]);
        if (*ret_value || is_word(text, words[i][0]))
            return true;
    }
    return false;
}

static bool as_bool(const struct muster_value *value, bool *ret_value)
{
    switch (value->kind) {
    case MUSTER_VALUE_BOOL:
        *ret_value = value->boolean;
        return true;
    case MUSTER_VALUE_INT:
        *ret_value = value->integer == 1;
        return value->integer == 0 || value->integer == 1;
    case MUSTER_VALUE_TEXT:
        return text_as_bool(value->text, ret_value);
    case MUSTER_VALUE_FLOAT:
        break;
    }
    return false;
}

int muster_rdzv_params_get_as_bool(const struct muster_rdzv_params *params, const char *key, bool fallback,
                                   bool *ret_value, struct muster_error *reterr)
{
    const struct option *option = options_find(&params->options, key);
    bool value = fallback;

    if (option != NULL && !as_bool(&option->value, &value))
        return mu_fail(reterr, MUSTER_EINVAL,
                       "rendezvous option '%s' is no truth value; expected true, t, yes, y, 1 or false, f, no, n, 0",
                       key);
    *ret_value = value;
    return 0;
}

static bool float_as_int(double number, int64_t *ret_value)
{
    const double limit = 9223372036854775808.0; /* 2^63 */

    if (!(number >= -limit && number < limit)) /* not a number is neither */
        return false;
    *ret_value = (int64_t)number;
    return true;
}

static bool as_int(const struct muster_value *value, int64_t *ret_value)
{
    switch (value->kind) {
    case MUSTER_VALUE_TEXT:
        return mu_number_int(value->text, ret_value);
    case MUSTER_VALUE_INT:
        *ret_value = value->integer;
        return true;
    case MUSTER_VALUE_BOOL:
        *ret_value = value->boolean;
        return true;
    case MUSTER_VALUE_FLOAT:
        return float_as_int(value->number, ret_value);
    }
    return false;
}

int muster_rdzv_params_get_as_int(const struct muster_rdzv_params *params, const char *key, int64_t fallback,
                                  int64_t *ret_value, struct muster_error *reterr)
{
    const struct option *option = options_find(&params->options, key);

    if (option == NULL)
        *ret_value = fallback;
    else if (!as_int(&option->value, ret_value))
        return mu_fail(reterr, MUSTER_EINVAL,
                       "rendezvous option '%s': '%.40s' is not a whole number, or it is too large", key,
                       option->value.kind != MUSTER_VALUE_TEXT ? "(not text)"
                       : mu_secret_is_key(mu_slice_str(key))   ? "***"
                                                               : option->value.text);
    return 0;
}
