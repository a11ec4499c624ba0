/* Intrusive, circular, doubly linked list. A head is a link that belongs to no item; an item that is in no list
 * links to itself, so that removing it twice is harmless. */
#ifndef MU_BASE_LIST_H
#define MU_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct mu_list {
    struct mu_list *prev, *next;
};

#define MU_LIST_ITEM(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

/* for each item of the list, in order. The item must stay in the list until the next one is looked at. */
#define MU_LIST_EACH(type, item, head, member)                                                                         \
    for (type *item = MU_LIST_ITEM((head)->next, type, member); &(item)->member != (head);                             \
         (item) = MU_LIST_ITEM((item)->member.next, type, member))

/* The same where the item may leave the list or be freed; the one behind it must stay. */
#define MU_LIST_EACH_LEAVING(type, item, head, member)                                                                 \
    for (type *item = MU_LIST_ITEM((head)->next, type, member),                                                        \
              *item##_next = MU_LIST_ITEM((item)->member.next, type, member);                                          \
         &(item)->member != (head);                                                                                    \
         (item) = item##_next, item##_next = MU_LIST_ITEM((item)->member.next, type, member))

/* The first item, which stays in the list or is taken out of it; NULL when the list is empty. */
#define MU_LIST_FIRST(type, head, member) ((type *)mu_list_item(mu_list_first(head), offsetof(type, member)))
#define MU_LIST_POP(type, head, member) ((type *)mu_list_item(mu_list_pop(head), offsetof(type, member)))

static inline void mu_list_init(struct mu_list *list)
{
    list->prev = list;
    list->next = list;
}

static inline bool mu_list_empty(const struct mu_list *list)
{
    return list->next == list;
}

static inline void mu_list_push(struct mu_list *head, struct mu_list *item) /* at the tail */
{
    item->prev = head->prev;
    item->next = head;
    head->prev->next = item;
    head->prev = item;
}

static inline void mu_list_push_front(struct mu_list *head, struct mu_list *item)
{
    mu_list_push(head->next, item); /* before the first is behind the head */
}

static inline void mu_list_remove(struct mu_list *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    mu_list_init(item);
}

static inline struct mu_list *mu_list_first(const struct mu_list *head) /* NULL when empty */
{
    return mu_list_empty(head) ? NULL : head->next;
}

static inline struct mu_list *mu_list_pop(struct mu_list *head) /* from the front; NULL when empty */
{
    struct mu_list *item = mu_list_first(head);

    if (item != NULL)
        mu_list_remove(item);
    return item;
}

static inline void *mu_list_item(struct mu_list *link, size_t offset) /* for the macros above */
{
    return link == NULL ? NULL : (char *)link - offset;
}

/* Moves every item, in order, to `to`, an unused head. Items that are pushed to `from` later stay there. */
static inline void mu_list_take(struct mu_list *to, struct mu_list *from)
{
    mu_list_push(from, to); /* a head in the place of another */
    mu_list_remove(from);
}

#endif
