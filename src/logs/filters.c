/* Which output of the workers is shown, and which is written a second time. */
#include "logs/filters.h"

#include "base/number.h"

#include <stdlib.h>

enum { NUMBER_BYTES_MAX = 64 }; /* of one rank, blanks and all */

/* *ret_rank is MU_RANKS_SHOWN_MAX for a number that is no local rank. */
static bool parse_rank(struct mu_slice text, uint32_t *ret_rank)
{
    char number[NUMBER_BYTES_MAX + 1] = { 0 };
    int64_t value;

    if (text.len > NUMBER_BYTES_MAX)
        return false;
    memcpy(number, text.data, text.len);
    if (!mu_number_int(number, &value))
        return false;
    *ret_rank = value >= 0 && value < MU_RANKS_SHOWN_MAX ? (uint32_t)value : MU_RANKS_SHOWN_MAX;
    return true;
}

int mu_ranks_shown_parse(const char *option, const char *text, struct mu_ranks_shown *ret, struct muster_error *reterr)
{
    struct mu_ranks_shown shown = { .some = text[0] != '\0' };
    const char *at = text;
    uint32_t rank;

    for (; shown.some; at++) {
        size_t len = strcspn(at, ",");

        if (!parse_rank(mu_slice(at, len), &rank))
            return mu_fail(reterr, MUSTER_EINVAL, "%s: '%.200s' is not a list of integers such as 0,1,2", option, text);
        if (rank < MU_RANKS_SHOWN_MAX)
            shown.bits[rank / 64] |= UINT64_C(1) << (rank % 64);
        at += len;
        if (*at == '\0')
            break;
    }
    *ret = shown;
    return 0;
}

bool mu_ranks_shown_has(const struct mu_ranks_shown *shown, uint32_t local_rank)
{
    if (!shown->some)
        return true;
    return local_rank < MU_RANKS_SHOWN_MAX && (shown->bits[local_rank / 64] >> (local_rank % 64) & 1) != 0;
}

/* Copies the next item to `to`, with `,,` as one comma. True: another item follows. */
static bool take_item(const char **text, char *to, size_t *ret_len)
{
    size_t len = 0;

    for (; **text != '\0'; (*text)++) {
        if ((*text)[0] == ',' && (*text)[1] != ',') {
            (*text)++;
            *ret_len = len;
            return true;
        }
        if ((*text)[0] == ',')
            (*text)++;
        to[len++] = **text;
    }
    *ret_len = len;
    return false;
}

int mu_filters_parse(const char *option, const char *text, struct mu_filters *ret, struct muster_error *reterr)
{
    size_t len = strlen(text), used = 0, count = 0, item_len;
    struct mu_filters filters = { 0 };
    const char *at = text;
    bool more = len > 0;

    if (len > MU_FILTERS_BYTES_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "%s: longer than %d bytes", option, MU_FILTERS_BYTES_MAX);
    if (!more) {
        *ret = filters;
        return 0;
    }
    for (const char *comma = text; (comma = strchr(comma, ',')) != NULL; comma++)
        count++; /* an item more than single commas, and never more than this */
    filters.text = malloc(len);
    filters.items = calloc(count + 1, sizeof *filters.items);
    if (filters.text == NULL || filters.items == NULL) {
        mu_filters_done(&filters);
        return mu_fail(reterr, MUSTER_ENOMEM, "%s: out of memory", option);
    }
    while (more) {
        if (filters.count == MU_FILTERS_ITEMS_MAX) {
            mu_filters_done(&filters);
            return mu_fail(reterr, MUSTER_ELIMIT, "%s: more than %d items", option, MU_FILTERS_ITEMS_MAX);
        }
        more = take_item(&at, filters.text + used, &item_len);
        filters.items[filters.count++] = mu_slice(filters.text + used, item_len);
        used += item_len;
    }
    *ret = filters;
    return 0;
}

void mu_filters_done(struct mu_filters *filters)
{
    free(filters->text);
    free(filters->items);
    *filters = (struct mu_filters){ 0 };
}

bool mu_filters_match(const struct mu_filters *filters, struct mu_slice line)
{
    for (size_t i = 0; i < filters->count; i++) {
        struct mu_slice item = filters->items[i];

        if (item.len == 0 || (item.len <= line.len && memmem(line.data, line.len, item.data, item.len) != NULL))
            return true;
    }
    return false;
}
