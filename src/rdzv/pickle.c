/* The document as a pickle: from the values that were read to a document, and the times of both. */
#include "rdzv/pickle_parts.h"

#include "rdzv/rdzv.h"

#include <stdlib.h>

/* ---- Times: microseconds since 1970, and Python's ten bytes ---- */

#define SECOND_US INT64_C(1000000)
#define DAY_US (INT64_C(86400) * SECOND_US)
#define DAYS_TO_1970 719162                         /* from 0001-01-01 */
#define TIME_MIN_US (-DAYS_TO_1970 * DAY_US)        /* 0001-01-01 00:00:00 */
#define TIME_MAX_US (INT64_C(2932897) * DAY_US - 1) /* 9999-12-31 23:59:59.999999 */

static const uint16_t days_before[2][13] = {
    { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365 },
    { 0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335, 366 },
};

static bool is_leap(unsigned year)
{
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

static unsigned days_before_year(unsigned year) /* since 0001-01-01 */
{
    unsigned before = year - 1;

    return before * 365 + before / 4 - before / 100 + before / 400;
}

bool mu_pickle_time_get(const uint8_t bytes[static TIME_LEN], int64_t *ret_us)
{
    unsigned year = (unsigned)bytes[0] << 8 | bytes[1];
    unsigned month = bytes[2] & 0x7f; /* the top bit says which of two equal local times it is; UTC has none */
    unsigned day = bytes[3], hour = bytes[4], minute = bytes[5], second = bytes[6];
    unsigned us = (unsigned)bytes[7] << 16 | (unsigned)bytes[8] << 8 | bytes[9];
    const uint16_t *before = days_before[is_leap(year)];
    int64_t days;

    if (year < 1 || year > 9999 || month < 1 || month > 12 || day < 1)
        return false;
    if (day > (unsigned)(before[month] - before[month - 1]) || hour > 23 || minute > 59 || second > 59 || us > 999999)
        return false;
    days = (int64_t)days_before_year(year) + before[month - 1] + day - 1 - DAYS_TO_1970;
    *ret_us = days * DAY_US + ((hour * 60 + minute) * INT64_C(60) + second) * SECOND_US + us;
    return true;
}

void mu_pickle_time_put(uint8_t bytes[static TIME_LEN], int64_t us)
{
    uint64_t since = (uint64_t)((us < TIME_MIN_US ? TIME_MIN_US : us > TIME_MAX_US ? TIME_MAX_US : us) - TIME_MIN_US);
    unsigned days = (unsigned)(since / DAY_US), year = days / 366 + 1, month = 1;
    unsigned seconds = (unsigned)(since % DAY_US / SECOND_US), rest = (unsigned)(since % SECOND_US);
    const uint16_t *before;

    year += (days - days_before_year(year)) / 366; /* two guesses from below leave at most a year */
    while (days >= days_before_year(year + 1))
        year++;
    days -= days_before_year(year);
    before = days_before[is_leap(year)];
    while (days >= before[month])
        month++;
    bytes[0] = (uint8_t)(year >> 8);
    bytes[1] = (uint8_t)year;
    bytes[2] = (uint8_t)month;
    bytes[3] = (uint8_t)(days - before[month - 1] + 1);
    bytes[4] = (uint8_t)(seconds / 3600);
    bytes[5] = (uint8_t)(seconds / 60 % 60);
    bytes[6] = (uint8_t)(seconds % 60);
    bytes[7] = (uint8_t)(rest >> 16);
    bytes[8] = (uint8_t)(rest >> 8);
    bytes[9] = (uint8_t)rest;
}

/* ---- From the state to the document ---- */

static bool check_map(struct decoder *d, enum attribute attribute, enum holds holds)
{
    const struct container *map = &d->containers[d->fields[attribute].index];

    return map->holds == HOLDS_NOTHING || map->holds == holds ||
           mu_pickle_refuse(d, "the state's '%s' maps to the wrong things", attribute_names[attribute].data);
}

/* A node that stands in several maps is looked up once. */
static bool enter(struct decoder *d, struct mu_doc *doc, const struct entry *entry, unsigned in)
{
    struct node *node = &d->nodes[entry->node];
    struct mu_doc_member *member = node->member == NO_MEMBER ? NULL : &doc->members[node->member];

    if (member == NULL || (in & ~member->in & ~(unsigned)MU_DOC_HEARTBEAT) != 0) {
        member =
            mu_doc_enter(doc, &(struct mu_node){ mu_slice(node->name, node->name_len), node->pid, node->local_id }, in);
        if (member == NULL)
            return doc->count == MU_DOC_MEMBERS_MAX ? mu_pickle_refuse(d, "more than %u members", MU_DOC_MEMBERS_MAX)
                                                    : mu_pickle_refuse_memory(d);
        node->member = (uint32_t)(member - doc->members);
    }
    member->in |= in; /* heartbeats are not counted */
    if (in == MU_DOC_PARTICIPANT)
        member->rank = entry->value;
    if (in == MU_DOC_HEARTBEAT)
        member->heartbeat_us = entry->value;
    return true;
}

static bool enter_all(struct decoder *d, struct mu_doc *doc, enum attribute attribute, unsigned in)
{
    const struct value *field = &d->fields[attribute];

    if (field->kind == KIND_ABSENT)
        return true;
    for (size_t i = 0; i < d->entries_count; i++)
        if (d->entries[i].container == field->index && !enter(d, doc, &d->entries[i], in))
            return false;
    return true;
}

static bool any_heartbeat(const struct decoder *d)
{
    return d->containers[d->fields[ATTRIBUTE_LAST_HEARTBEATS].index].holds != HOLDS_NOTHING;
}

/* What nothing in the document tells is taken to be as it is expected, if that goes with the rest of it; otherwise as
 * in the newest version that the rest goes with. */
static struct mu_doc_dialect dialect_of(const struct decoder *d, const struct mu_doc *doc,
                                        struct mu_doc_dialect expected)
{
    struct mu_doc_dialect dialect = { .spares = d->fields[ATTRIBUTE_REDUNDANCY_LIST].kind != KIND_ABSENT };
    bool fits = expected.spares == dialect.spares;

    dialect.addr = doc->count > 0 ? d->names == NAMES_ADDR : fits ? expected.addr : dialect.spares;
    if (doc->has_deadline || any_heartbeat(d))
        dialect.zoned = d->times == TIMES_ZONED;
    else
        dialect.zoned = fits ? expected.zoned : dialect.spares;
    if (!dialect.spares)
        dialect.habits = MU_HABITS_1_13;
    else if (dialect.zoned)
        dialect.habits = MU_HABITS_2_X;
    else
        dialect.habits = fits && !expected.zoned ? expected.habits : MU_HABITS_2_5;
    return dialect;
}

static bool fill(struct decoder *d, struct mu_doc *doc)
{
    size_t count = d->entries_count < d->nodes_count ? d->entries_count : d->nodes_count;

    if (d->fields[ATTRIBUTE_ROUND].number > MU_DOC_ROUND_MAX)
        return mu_pickle_refuse(d, "a round that no rendezvous gets to");
    if (!check_map(d, ATTRIBUTE_PARTICIPANTS, HOLDS_RANKS) || !check_map(d, ATTRIBUTE_LAST_HEARTBEATS, HOLDS_TIMES))
        return false;
    if (mu_doc_reserve(doc, count < MU_DOC_MEMBERS_MAX ? count : MU_DOC_MEMBERS_MAX) < 0)
        return mu_pickle_refuse_memory(d);
    if (!enter_all(d, doc, ATTRIBUTE_PARTICIPANTS, MU_DOC_PARTICIPANT) ||
        !enter_all(d, doc, ATTRIBUTE_WAIT_LIST, MU_DOC_WAITING) ||
        !enter_all(d, doc, ATTRIBUTE_REDUNDANCY_LIST, MU_DOC_SPARE) ||
        !enter_all(d, doc, ATTRIBUTE_LAST_HEARTBEATS, MU_DOC_HEARTBEAT))
        return false;
    doc->round = d->fields[ATTRIBUTE_ROUND].number;
    doc->complete = d->fields[ATTRIBUTE_COMPLETE].number != 0;
    doc->closed = d->fields[ATTRIBUTE_CLOSED].number != 0;
    doc->has_deadline = d->fields[ATTRIBUTE_DEADLINE].kind == KIND_TIME;
    doc->deadline_us = d->fields[ATTRIBUTE_DEADLINE].number;
    doc->dialect = dialect_of(d, doc, doc->dialect);
    return true;
}

int mu_pickle_decode(struct mu_slice bytes, struct mu_doc *doc, struct muster_error *reterr)
{
    const uint8_t *start = (const uint8_t *)(bytes.len == 0 ? "" : bytes.data);
    struct decoder d = { .start = start, .at = start, .end = start + bytes.len, .reterr = reterr };
    struct mu_doc fresh;

    if (bytes.len > MU_PICKLE_BYTES_MAX)
        return mu_fail(reterr, MUSTER_ERDZV_STATE, "byte %zu: longer than a document can be", MU_PICKLE_BYTES_MAX);
    mu_doc_init(&fresh, doc->seed, doc->dialect);
    if (mu_pickle_run(&d) && fill(&d, &fresh))
        mu_doc_swap(doc, &fresh);
    mu_doc_done(&fresh);
    free(d.stack);
    free(d.memo);
    free(d.nodes);
    free(d.containers);
    free(d.entries);
    return d.rc;
}
bool mu_pickle_is_other_layout(struct mu_slice bytes)
{
    const struct mu_slice name = class_names[CLASS_STATE];
    const uint8_t *at = (const uint8_t *)bytes.data;

    return bytes.len > name.len && at[0] == OP_PROTO && at[bytes.len - 1] == OP_STOP &&
           memmem(bytes.data, bytes.len, name.data, name.len) != NULL;
}

const struct mu_doc_codec mu_doc_codec_pickle = {
    .name = "pickle",
    .decode = mu_pickle_decode,
    .encode = mu_pickle_encode,
    .is_other_layout = mu_pickle_is_other_layout,
};
