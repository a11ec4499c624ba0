/* One node of an etcd-v3 rendezvous, see fold.h: whether the document's world has a seat for us, and who else is in it.
 */
#include "rdzv/fold_parts.h"

#include <inttypes.h>
#include <stdio.h>

static void forget(struct seat *seat, uint64_t world, int64_t nodes)
{
    mu_fold_members_done(&seat->names);
    *seat = (struct seat){ .state = SEAT_UNASKED, .world = world, .nodes = nodes };
}

/* What is known of a seat is known of one world. */
void mu_fold_seat_observe(struct mu_fold *f)
{
    uint64_t world = mu_fold_has(f, JOB_DOC) ? f->doc.id : 0;
    int64_t nodes = world != 0 ? f->doc.nodes : 0;

    if (f->seat.world != world || f->seat.nodes != nodes)
        forget(&f->seat, world, nodes);
}

static void name_seat(const struct mu_fold *f, char key[static MU_FOLD_KEY_MAX])
{
    (void)snprintf(key, MU_FOLD_KEY_MAX, "seat/%016" PRIx64 "/%016" PRIx64, f->seat.world, f->id);
}

static void range(struct mu_fold *f, enum seat_state state, bool prefix)
{
    struct mu_fold_effect *effect = mu_fold_request(f, MU_FOLD_DO_RANGE, &f->seat.id);

    f->seat.state = state;
    effect->key = mu_slice_str(f->seat.key);
    effect->prefix = prefix;
}

void mu_fold_seat_ask(struct mu_fold *f)
{
    if (f->phase != MU_FOLD_JOINING || !f->job.loaded || f->seat.world == 0 || mu_fold_was_left(f, f->seat.world))
        return;
    if (f->seat.state == SEAT_UNASKED) {
        name_seat(f, f->seat.key);
        range(f, SEAT_ASKED, false);
    } else if (f->seat.state == SEAT_RANKED && mu_fold_is_due(f, f->seat.again_ms)) {
        (void)snprintf(f->seat.key, sizeof f->seat.key, "member/%016" PRIx64 "/", f->seat.world);
        range(f, SEAT_NAMES_ASKED, true);
    }
}

/* ---- Answers ---- */

static void hear_seat(struct mu_fold *f, const struct mu_fold_event *event)
{
    char key[MU_FOLD_KEY_MAX];
    const struct mu_fold_kv *kv = NULL;
    int rc;

    name_seat(f, key);
    for (size_t i = 0; i < event->count; i++)
        if (mu_slice_equal(event->kvs[i].key, mu_slice_str(key)))
            kv = &event->kvs[i];
    f->seat.state = SEAT_NONE;
    if (kv == NULL)
        return;
    rc = mu_fold_seat_read(kv->value, &f->seat.found, NULL);
    if (rc == MUSTER_ENOMEM) {
        f->seat.state = SEAT_UNASKED;
        mu_fold_back_off(f);
    } else if (rc < 0 || f->seat.found.rank >= f->doc.nodes) {
        mu_fold_see_foreign(f, kv, "joining the next round");
        mu_fold_note_left(f, f->seat.world); /* so that nobody waits for us in this one */
    } else {
        f->seat.state = f->wants_names ? SEAT_RANKED : SEAT_FOUND;
    }
}

static void hear_names(struct mu_fold *f, const struct mu_fold_event *event)
{
    size_t pages = 0;

    f->seat.state = SEAT_RANKED;
    if (mu_fold_members_init(&f->seat.names, f->doc.id, (size_t)f->doc.nodes) == 0 &&
        mu_fold_read_pages(event, &f->seat.names, &pages) == 0 && mu_fold_members_sort(&f->seat.names) &&
        mu_fold_members_all_known(&f->seat.names) && f->seat.names.items[f->seat.found.rank].id == f->id)
        f->seat.state = SEAT_FOUND;
    else
        f->seat.again_ms = f->now_ms + MU_FOLD_RETRY_MAX_MS; /* the leader mends it, or another world comes */
}

bool mu_fold_seat_ranged(struct mu_fold *f, const struct mu_fold_event *event)
{
    if (!mu_fold_is_answer(event, &f->seat.id))
        return false;
    mu_fold_is_heard(f);
    if (!f->job.loaded || !mu_fold_has(f, JOB_DOC) || f->doc.id != f->seat.world || f->doc.nodes != f->seat.nodes)
        forget(&f->seat, 0, 0);
    else if (f->seat.state == SEAT_ASKED)
        hear_seat(f, event);
    else
        hear_names(f, event);
    return true;
}

bool mu_fold_seat_failed(struct mu_fold *f, const struct mu_fold_event *event)
{
    if (!mu_fold_is_answer(event, &f->seat.id))
        return false;
    f->seat.state = f->seat.state == SEAT_ASKED ? SEAT_UNASKED : SEAT_RANKED;
    return true;
}

/* ---- Pages ---- */

size_t mu_fold_pages(size_t nodes)
{
    return (nodes + MU_FOLD_PAGE_MEMBERS - 1) / MU_FOLD_PAGE_MEMBERS;
}

/* "member/<world>/<number>", the number with four digits. */
bool mu_fold_parse_page(struct mu_slice key, uint64_t *ret_world, size_t *ret_number)
{
    enum { DIGITS = 4 };
    struct mu_slice rest = key;
    size_t id = MU_FOLD_ID_TEXT_MAX - 1;

    if (!mu_slice_skip(&rest, "member/") || rest.len != id + 1 + DIGITS || rest.data[id] != '/' ||
        !mu_fold_id_parse(mu_slice(rest.data, id), ret_world))
        return false;
    *ret_number = 0;
    for (size_t i = id + 1; i < rest.len; i++) {
        if (rest.data[i] < '0' || rest.data[i] > '9')
            return false;
        *ret_number = *ret_number * 10 + (size_t)(rest.data[i] - '0');
    }
    return true;
}

int mu_fold_read_pages(const struct mu_fold_event *event, struct mu_fold_members *members, size_t *ret_pages)
{
    *ret_pages = 0;
    for (size_t i = 0; i < event->count; i++) {
        uint64_t world = 0;
        size_t number = 0;
        int rc;

        if (!mu_fold_parse_page(event->kvs[i].key, &world, &number) || world != members->world)
            continue;
        rc = mu_fold_members_read_page(members, number, event->kvs[i].value, NULL);
        if (rc == MUSTER_ENOMEM)
            return rc;
        *ret_pages += rc == 0;
    }
    return 0;
}
