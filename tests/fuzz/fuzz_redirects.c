/* The texts that say what becomes of workers' output: redirects, rank filters, line filters, prefix templates. What is
 * read holds what it must, and the two lists read the same when they are written down again. */
#include "logs/filters.h"
#include "logs/lines.h"
#include "logs/redirects.h"

#include <stdio.h>
#include <stdlib.h>

enum { TEXT_MAX = 8192 };

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void check_redirects(const char *text)
{
    struct mu_redirects redirects, again;
    struct muster_error err = { 0 };
    char written[4 * MU_REDIRECTS_NAMED_MAX + 1];
    int rc = mu_redirects_parse("--tee", text, &redirects, &err);

    if (rc < 0) {
        EXPECT(rc == MUSTER_EINVAL && err.code == rc && err.text[0] != '\0');
        return;
    }
    EXPECT(strlen(text) == 1 || strlen(text) % 4 == 3);
    for (uint32_t i = 0; i < MU_REDIRECTS_NAMED_MAX; i++)
        (void)snprintf(written + (size_t)4 * i, 5, "%u:%u,", (unsigned)i, mu_redirects_of(&redirects, i));
    written[4 * MU_REDIRECTS_NAMED_MAX - 1] = '\0';
    EXPECT(mu_redirects_parse("--tee", written, &again, NULL) == 0);
    for (uint32_t i = 0; i < MU_REDIRECTS_NAMED_MAX; i++) {
        EXPECT(mu_redirects_of(&redirects, i) <= MU_STD_BOTH);
        EXPECT(mu_redirects_of(&redirects, i) == mu_redirects_of(&again, i));
    }
}

static void check_ranks(const char *text)
{
    struct mu_ranks_shown shown;
    int rc = mu_ranks_shown_parse("--local-ranks-filter", text, &shown, NULL);

    EXPECT(rc == 0 || rc == MUSTER_EINVAL);
    if (rc == 0)
        EXPECT(mu_ranks_shown_has(&shown, MU_RANKS_SHOWN_MAX) == (text[0] == '\0'));
}

static void check_filters(const char *text)
{
    static char written[2 * TEXT_MAX];
    struct mu_filters filters, again;
    size_t used = 0;
    int rc = mu_filters_parse("--duplicate-stdout-filters", text, &filters, NULL);

    EXPECT(rc == 0 || rc == MUSTER_ELIMIT);
    if (rc < 0)
        return;
    for (size_t i = 0; i < filters.count; i++) {
        if (i > 0)
            written[used++] = ',';
        EXPECT(mu_filters_match(&filters, filters.items[i]));
        for (size_t j = 0; j < filters.items[i].len; j++) {
            written[used++] = filters.items[i].data[j];
            if (filters.items[i].data[j] == ',')
                written[used++] = ',';
        }
    }
    written[used] = '\0';
    EXPECT(strlen(written) == used);
    EXPECT(mu_filters_parse("--duplicate-stdout-filters", written, &again, NULL) == 0);
    /* Where an item begins with a comma the commas in front of it pair up in another way; PyTorch has no word for
     * it. */
    EXPECT((again.count == 0) == (filters.count == 0 || used == 0));
    mu_filters_done(&filters);
    mu_filters_done(&again);
}

static void check_prefix(const char *text)
{
    static char prefix[MU_PREFIX_MAX];

    mu_prefix_format(
        text, &(struct mu_prefix_words){ .role = "role", .host = "host", .rank = UINT64_MAX, .local_rank = UINT32_MAX },
        prefix);
    EXPECT(strlen(prefix) < MU_PREFIX_MAX);
    if (text[0] != '\0' && strchr(text, '$') == NULL && strlen(text) < MU_PREFIX_MAX)
        EXPECT(strcmp(prefix, text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[TEXT_MAX];

    if (size > TEXT_MAX - 1)
        size = TEXT_MAX - 1;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    check_redirects(text);
    check_ranks(text);
    check_filters(text);
    check_prefix(text);
    return 0;
}
