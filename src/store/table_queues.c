/* Queues. An item is for one consumer: a push wakes one peer that waits for the key. That peer then owes the queue a
 * pop. If it does something else instead, or leaves, the next waiting peer is woken. */
#include "store/table_parts.h"

#include <stdlib.h>

static void forgive(struct mu_peer *peer)
{
    mu_list_remove(&peer->owing);
    peer->owes = NULL;
}

/* The queue is empty: there is nothing that anybody should come for. */
static void forgive_all(struct mu_entry *entry)
{
    MU_LIST_EACH_LEAVING (struct mu_peer, peer, &entry->owing, owing)
        forgive(peer);
}

/* Stops at the first peer that is woken: an item is for one consumer. */
static void wake_one(struct mu_table *table, struct mu_entry *entry)
{
    struct mu_reg *reg;

    while ((reg = MU_LIST_FIRST(struct mu_reg, &entry->waiters, link)) != NULL) {
        struct mu_peer *peer = reg->peer;

        mu_table_satisfy(table, reg);
        if (peer->missing == 0) {
            forgive(peer);
            peer->owes = entry;
            mu_list_push(&entry->owing, &peer->owing);
            return;
        }
    }
}

void mu_table_pass_on(struct mu_table *table, struct mu_peer *peer)
{
    struct mu_entry *entry = peer->owes;

    if (entry == NULL)
        return;
    forgive(peer);
    if (!mu_list_empty(&entry->queue))
        wake_one(table, entry);
}

/* Is the request about this key? */
static bool names(const struct mu_request *request, const struct mu_entry *entry)
{
    struct mu_slice list = request->list, key, wanted = mu_entry_key(entry);

    if (request->op != MU_OP_CHECK && request->op != MU_OP_WAIT)
        return mu_slice_equal(request->key, wanted);
    while (mu_request_next(&list, &key, NULL)) {
        if (mu_slice_equal(key, wanted))
            return true;
    }
    return false;
}

/* A request that has nothing to do with the queue means that the peer is not coming for the item. */
void mu_table_settle_debt(struct mu_table *table, struct mu_peer *peer, const struct mu_request *request)
{
    if (request->op == MU_OP_CANCEL_WAIT || request->op == MU_OP_BARRIER || !names(request, peer->owes))
        mu_table_pass_on(table, peer);
}

void mu_step_queue_push(const struct mu_step *step)
{
    struct mu_slice value = step->request->value;
    struct mu_queue_item *item = NULL;
    struct mu_entry *entry;
    enum mu_room room = mu_table_find_or_make(step->table, step->peer, step->request->key, &entry);

    if (room == MU_ROOM_ENOUGH)
        item = mu_table_alloc(step->table, step->peer, sizeof *item + value.len, sizeof *item, &room);
    if (item == NULL) {
        mu_step_refuse(step, entry, room);
        return;
    }
    item->account = mu_account_hold(step->peer->account);
    item->len = value.len;
    if (item->len > 0)
        memcpy(item->data, value.data, item->len);
    mu_list_push(&entry->queue, &item->link);
    entry->queue_len++;
    wake_one(step->table, entry);
}

void mu_table_free_item(struct mu_table *table, struct mu_queue_item *item)
{
    mu_table_give(table, item->account, sizeof *item + item->len);
    mu_account_release(item->account);
    free(item);
}

void mu_step_queue_pop(const struct mu_step *step)
{
    struct mu_table *table = step->table;
    struct mu_entry *entry = mu_table_find(table, step->request->key);
    struct mu_queue_item *item;

    if (entry == NULL || mu_list_empty(&entry->queue)) {
        mu_answer_number(step->out, MU_ANSWER_POPPED, 0);
        return;
    }
    item = MU_LIST_ITEM(mu_list_first(&entry->queue), struct mu_queue_item, link);
    if (mu_buf_assign(&table->spent, mu_slice(item->data, item->len)) < 0) {
        mu_step_refuse(step, entry, MU_ROOM_NO_MEMORY);
        return;
    }
    if (step->peer->owes == entry)
        forgive(step->peer); /* it has come for its item */
    mu_list_remove(&item->link);
    mu_table_free_item(table, item);
    mu_answer_number(step->out, MU_ANSWER_POPPED, entry->queue_len);
    step->out->bytes = mu_buf_slice(&table->spent);
    entry->queue_len--;
    if (entry->queue_len == 0)
        forgive_all(entry);
    mu_table_drop_if_idle(table, entry);
}
