/* Option strings of a rendezvous, into parameters and out of them again as truths, integers and settings. */
#include "handler/handler.h"

#include <stdlib.h>

enum { TEXT_MAX = 1500 }; /* room for more options than are allowed */

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

struct walk {
    struct muster_rdzv_params *params; /* NULL: only count */
    size_t count;
};

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void check_trimmed(struct mu_slice text)
{
    EXPECT(text.len > 0 && !is_blank(text.data[0]) && !is_blank(text.data[text.len - 1]));
    EXPECT(memchr(text.data, ',', text.len) == NULL);
}

static int on_option(void *ctx, struct mu_slice key, struct mu_slice value, struct muster_error *reterr)
{
    struct walk *walk = ctx;
    struct muster_value there;
    char text[256];
    int64_t integer;
    bool truth;

    (void)reterr;
    walk->count++;
    check_trimmed(key);
    check_trimmed(value);
    EXPECT(memchr(key.data, '=', key.len) == NULL);
    if (walk->params == NULL || key.len >= sizeof text)
        return 0;
    memcpy(text, key.data, key.len);
    text[key.len] = '\0';
    EXPECT(muster_rdzv_params_get(walk->params, text, &there) && there.kind == MUSTER_VALUE_TEXT);
    (void)muster_rdzv_params_get_as_int(walk->params, text, 0, &integer, NULL);
    (void)muster_rdzv_params_get_as_bool(walk->params, text, false, &truth, NULL);
    return 0;
}

static void check_settings(const struct muster_rdzv_params *params)
{
    struct mu_rdzv_settings settings;
    struct mu_doc_dialect dialect;
    bool shares;

    (void)mu_rdzv_dialect_from_params(params, &dialect, &shares, NULL);
    if (mu_rdzv_settings_from_params(params, &settings, NULL) < 0)
        return;
    EXPECT(settings.join_ms > 0 && settings.last_call_ms > 0 && settings.close_ms > 0 && settings.heartbeat_ms > 0);
    EXPECT(settings.keep_alive_ms > 0 && settings.keep_alive_attempts > 0);
    EXPECT(mu_rdzv_death_age_ms(&settings) / settings.keep_alive_attempts == settings.keep_alive_ms);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[TEXT_MAX];
    struct muster_error err = { 0 };
    struct walk walk = { 0 };
    int parsed, set;

    if (size > TEXT_MAX - 1)
        size = TEXT_MAX - 1;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    EXPECT(muster_rdzv_params_new("c10d", "", "job", 1, 1, NULL, &walk.params, NULL) == 0);
    set = muster_rdzv_params_set_options(walk.params, text, &err);
    EXPECT(set == 0 || ((set == MUSTER_EINVAL || set == MUSTER_ELIMIT) && err.code == set && err.text[0] != '\0'));
    if (set < 0) { /* then nothing is set */
        muster_rdzv_params_free(walk.params);
        walk.params = NULL;
    }
    parsed = mu_rdzv_options_parse(text, on_option, &walk, NULL);
    EXPECT(set < 0 || parsed == 0);
    if (walk.params != NULL)
        check_settings(walk.params);
    muster_rdzv_params_free(walk.params);
    return 0;
}
