/* Timeouts and limits of a rendezvous: taken from its options, which are whole seconds, and checked. Pure. */
#include "base/number.h"
#include "handler/handler.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define SECONDS_MAX INT64_C(1000000000) /* about 31 years: no sum or product of such times overflows */
#define ATTEMPTS_MAX INT64_C(1000000)
#define READ_TIMEOUT_S 60
#define READ_TIMEOUT_MAX_S 100000000

static const char attempts_key[] = "keep_alive_max_attempt";

/* Options that are times, and their place in the settings. */
static const struct {
    const char *key;
    size_t offset;
    bool zero_is_fine;
} times[] = {
    { "join_timeout", offsetof(struct mu_rdzv_settings, join_ms), false },
    { "last_call_timeout", offsetof(struct mu_rdzv_settings, last_call_ms), false },
    { "close_timeout", offsetof(struct mu_rdzv_settings, close_ms), false },
    { "heartbeat_timeout", offsetof(struct mu_rdzv_settings, heartbeat_ms), false },
    { "keep_alive_interval", offsetof(struct mu_rdzv_settings, keep_alive_ms), false },
    { "lost_node_wait", offsetof(struct mu_rdzv_settings, lost_node_wait_ms), true },
    { "store_lost_timeout", offsetof(struct mu_rdzv_settings, store_lost_ms), true },
};
#define TIMES_COUNT (sizeof times / sizeof times[0])

static uint64_t *time_of(const struct mu_rdzv_settings *settings, size_t index)
{
    return (uint64_t *)((uintptr_t)settings + times[index].offset);
}

const char *mu_rdzv_duration_text(int64_t ms, char text[static MU_RDZV_DURATION_MAX])
{
    const int64_t day_ms = INT64_C(86400000);
    int64_t days = ms / day_ms, rest = ms % day_ms;
    int used = 0;

    if (rest < 0) { /* what is left of a day is never negative; the days are */
        rest += day_ms;
        days--;
    }
    if (days != 0)
        used = snprintf(text, MU_RDZV_DURATION_MAX, "%" PRId64 " day%s, ", days, days == 1 || days == -1 ? "" : "s");
    used += snprintf(text + used, (size_t)(MU_RDZV_DURATION_MAX - used), "%" PRId64 ":%02" PRId64 ":%02" PRId64,
                     rest / 3600000, rest / 60000 % 60, rest / 1000 % 60);
    if (rest % 1000 != 0)
        (void)snprintf(text + used, (size_t)(MU_RDZV_DURATION_MAX - used), ".%06" PRId64, rest % 1000 * 1000);
    return text;
}

/* ---- Checks ---- */

static int check_duration(const char *part, uint64_t value_ms, bool zero_is_fine, struct muster_error *reterr)
{
    int64_t ms = (int64_t)value_ms; /* so that a negative one is seen as negative */
    char text[MU_RDZV_DURATION_MAX];

    if (ms < 0 || (ms == 0 && !zero_is_fine))
        return mu_fail(reterr, MUSTER_EINVAL, "%s: a time of %s is not %s", part, mu_rdzv_duration_text(ms, text),
                       zero_is_fine ? "0 or more" : "above 0");
    if (ms > SECONDS_MAX * 1000)
        return mu_fail(reterr, MUSTER_EINVAL, "%s: a time of %s is more than %" PRId64 " s", part,
                       mu_rdzv_duration_text(ms, text), SECONDS_MAX);
    return 0;
}

static int check_run_id(const char *run_id, struct muster_error *reterr)
{
    if (run_id == NULL || run_id[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "the run id is empty; every node of a job needs the same one");
    if (strlen(run_id) > MU_RDZV_RUN_ID_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "the run id '%.40s...' is %zu bytes long, more than %d", run_id,
                       strlen(run_id), MU_RDZV_RUN_ID_MAX);
    return 0;
}

int mu_rdzv_check_nodes(int64_t nodes_min, int64_t nodes_max, struct muster_error *reterr)
{
    if (nodes_min < 1)
        return mu_fail(reterr, MUSTER_EINVAL, "the minimum number of nodes must be at least 1, not %" PRId64,
                       nodes_min);
    if (nodes_max < nodes_min)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "the maximum number of nodes, %" PRId64 ", is below the minimum, %" PRId64, nodes_max,
                       nodes_min);
    return 0;
}

static int check_attempts(int64_t count, struct muster_error *reterr)
{
    if (count >= 1 && count <= ATTEMPTS_MAX)
        return 0;
    return mu_fail(reterr, MUSTER_EINVAL, "%s: %" PRId64 " is not in 1..%" PRId64, attempts_key, count, ATTEMPTS_MAX);
}

int mu_rdzv_settings_check(const char *run_id, const struct mu_rdzv_settings *settings, struct muster_error *reterr)
{
    int rc = check_run_id(run_id, reterr);

    if (rc == 0)
        rc = mu_rdzv_check_nodes(settings->nodes_min, settings->nodes_max, reterr);
    for (size_t i = 0; i < TIMES_COUNT && rc == 0; i++)
        rc = check_duration(times[i].key, *time_of(settings, i), times[i].zero_is_fine, reterr);
    return rc < 0 ? rc : check_attempts((int)settings->keep_alive_attempts, reterr);
}

/* ---- From options ---- */

static int read_seconds(const struct muster_rdzv_params *params, const char *key, uint64_t *ms,
                        struct muster_error *reterr)
{
    int64_t seconds = (int64_t)(*ms / 1000);
    int rc = muster_rdzv_params_get_as_int(params, key, seconds, &seconds, reterr);

    if (rc < 0)
        return rc;
    /* Only so far that it can be shown as a time; whether it fits is judged with the rest. */
    if (seconds > INT64_MAX / 1000 || seconds < INT64_MIN / 1000)
        return mu_fail(reterr, MUSTER_EINVAL, "%s: %" PRId64 " s is not in 1..%" PRId64, key, seconds, SECONDS_MAX);
    *ms = (uint64_t)(seconds * 1000);
    return 0;
}

static int read_attempts(const struct muster_rdzv_params *params, unsigned *attempts, struct muster_error *reterr)
{
    int64_t count = 0;
    int rc = muster_rdzv_params_get_as_int(params, attempts_key, (int64_t)*attempts, &count, reterr);

    if (rc == 0)
        rc = check_attempts(count, reterr);
    if (rc == 0)
        *attempts = (unsigned)count;
    return rc;
}

/* A number as Python's float() takes it, of seconds. What is above all bounds is bounded where it is used. */
static int read_back_off(const struct muster_rdzv_params *params, uint64_t *ms, struct muster_error *reterr)
{
    static const char key[] = "cas_backoff_max_seconds";
    struct muster_value value;
    double seconds = 0;
    bool good = true;

    if (!muster_rdzv_params_get(params, key, &value))
        return 0;
    switch (value.kind) {
    case MUSTER_VALUE_TEXT:
        good = mu_number_float(value.text, &seconds);
        break;
    case MUSTER_VALUE_INT:
        seconds = (double)value.integer;
        break;
    case MUSTER_VALUE_BOOL:
        seconds = value.boolean ? 1 : 0;
        break;
    case MUSTER_VALUE_FLOAT:
        seconds = value.number;
        break;
    }
    if (!good || !isfinite(seconds) || seconds < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "option '%s': '%.40s' must be a finite number of seconds, 0 or more", key,
                       value.kind == MUSTER_VALUE_TEXT ? value.text : "(not text)");
    if (seconds > (double)SECONDS_MAX)
        seconds = (double)SECONDS_MAX;
    *ms = (uint64_t)(seconds * 1000);
    *ms += (double)*ms < seconds * 1000; /* a part of a millisecond is one */
    return 0;
}

int mu_rdzv_settings_from_params(const struct muster_rdzv_params *params, struct mu_rdzv_settings *ret_settings,
                                 struct muster_error *reterr)
{
    struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;
    int rc = 0;

    settings.nodes_min = muster_rdzv_params_min_nodes(params);
    settings.nodes_max = muster_rdzv_params_max_nodes(params);
    for (size_t i = 0; i < TIMES_COUNT && rc == 0; i++)
        rc = read_seconds(params, times[i].key, time_of(&settings, i), reterr);
    if (rc == 0)
        rc = read_attempts(params, &settings.keep_alive_attempts, reterr);
    if (rc == 0)
        rc = read_back_off(params, &settings.back_off_ms, reterr);
    if (rc == 0)
        rc = mu_rdzv_settings_check(muster_rdzv_params_run_id(params), &settings, reterr);
    if (rc == 0)
        *ret_settings = settings;
    return rc;
}

int mu_rdzv_seconds_from_params(const struct muster_rdzv_params *params, const char *key, int64_t fallback,
                                int64_t least, int64_t most, uint64_t *ret_seconds, struct muster_error *reterr)
{
    int64_t seconds;
    int rc = muster_rdzv_params_get_as_int(params, key, fallback, &seconds, reterr);

    if (rc < 0)
        return rc;
    if (seconds < least || seconds > most)
        return mu_fail(reterr, MUSTER_EINVAL, "option '%s': %" PRId64 " s is not in %" PRId64 "..%" PRId64, key,
                       seconds, least, most);
    *ret_seconds = (uint64_t)seconds;
    return 0;
}

int mu_rdzv_read_timeout_from_params(const struct muster_rdzv_params *params, uint64_t *ret_ms,
                                     struct muster_error *reterr)
{
    int rc = mu_rdzv_seconds_from_params(params, "read_timeout", READ_TIMEOUT_S, 1, READ_TIMEOUT_MAX_S, ret_ms, reterr);

    if (rc == 0)
        *ret_ms *= 1000;
    return rc;
}

int mu_rdzv_word_from_params(const struct muster_rdzv_params *params, const char *key, const char *fallback,
                             char word[static MU_RDZV_WORD_MAX], struct muster_error *reterr)
{
    struct muster_value value = { .kind = MUSTER_VALUE_TEXT, .text = fallback };
    struct mu_slice text;

    if (muster_rdzv_params_get(params, key, &value) && value.kind != MUSTER_VALUE_TEXT)
        return mu_fail(reterr, MUSTER_EINVAL, "option '%s' is not text", key);
    text = mu_rdzv_trim(mu_slice_str(value.text));
    (void)snprintf(word, MU_RDZV_WORD_MAX, "%.*s", (int)text.len, text.data);
    for (char *at = word; *at != '\0'; at++)
        *at = (char)tolower((unsigned char)*at);
    return 0;
}

static const struct version { /* of PyTorch, as the option `dialect` names it */
    const char *name;
    struct mu_doc_dialect dialect;
    bool shares; /* the agent of rank 0 lets the workers have its store */
} versions[] = {
    { "2.x", MU_DOC_DIALECT_2_X, true }, { "2.5", MU_DOC_DIALECT_2_5, true }, { "2.4", MU_DOC_DIALECT_2_5, false },
    { "2.3", MU_DOC_DIALECT_2_3, true }, { "2.2", MU_DOC_DIALECT_2_2, true }, { "1.13", MU_DOC_DIALECT_1_13, true },
};

/* The first of them if the option is not given. */
static const struct version *find_version(const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    struct muster_value value;

    if (!muster_rdzv_params_get(params, "dialect", &value))
        return &versions[0];
    for (size_t i = 0; value.kind == MUSTER_VALUE_TEXT && i < sizeof versions / sizeof versions[0]; i++)
        if (strcmp(value.text, versions[i].name) == 0)
            return &versions[i];
    (void)mu_fail(reterr, MUSTER_EINVAL, "option 'dialect': '%.40s' is none of 2.x, 2.5, 2.4, 2.3, 2.2 and 1.13",
                  value.kind == MUSTER_VALUE_TEXT ? value.text : "(not text)");
    return NULL;
}

int mu_rdzv_dialect_from_params(const struct muster_rdzv_params *params, struct mu_doc_dialect *ret_dialect,
                                bool *ret_use_agent_store, struct muster_error *reterr)
{
    const struct version *version = find_version(params, reterr);

    if (version == NULL)
        return MUSTER_EINVAL;
    *ret_dialect = version->dialect;
    return muster_rdzv_params_get_as_bool(params, "use_agent_store", version->shares, ret_use_agent_store, reterr);
}
