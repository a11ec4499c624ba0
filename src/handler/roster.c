/* Who is in a static group. See roster.h. */
#include "handler/roster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char goodbye[] = "left";

void mu_roster_init(struct mu_roster *roster)
{
    *roster = (struct mu_roster){ .count = 0 };
    mu_list_init(&roster->nodes);
}

void mu_roster_done(struct mu_roster *roster)
{
    struct mu_list *link;

    while ((link = mu_list_first(&roster->nodes)) != NULL) {
        mu_list_remove(link);
        free(MU_LIST_ITEM(link, struct mu_roster_node, link));
    }
}

/* ---- Texts ---- */

void mu_roster_record(uint64_t seed, int64_t pid, const char *name, char record[static MU_ROSTER_RECORD_MAX])
{
    (void)snprintf(record, MU_ROSTER_RECORD_MAX, "%016" PRIx64 " %" PRId64 " %.*s", seed, pid, MU_ROSTER_NAME_MAX - 1,
                   name);
}

/* A number at the start of `text`, and the blank behind it, are taken off. */
static bool take_number(struct mu_slice *text, int64_t *ret_number)
{
    char digits[24];
    const char *blank = text->len == 0 ? NULL : memchr(text->data, ' ', text->len);
    size_t len = blank == NULL ? text->len : (size_t)(blank - text->data);
    char *end;

    if (len == 0 || len >= sizeof digits || text->data[0] < '0' || text->data[0] > '9')
        return false;
    memcpy(digits, text->data, len);
    digits[len] = '\0';
    *ret_number = strtoll(digits, &end, 10);
    if (*end != '\0')
        return false;
    len += blank != NULL;
    *text = mu_slice(text->data + len, text->len - len);
    return true;
}

static bool copy_name(struct mu_slice text, char name[static MU_ROSTER_NAME_MAX])
{
    if (text.len == 0 || text.len >= MU_ROSTER_NAME_MAX || memchr(text.data, '\0', text.len) != NULL)
        return false;
    for (size_t i = 0; i < text.len; i++)
        name[i] = (unsigned char)text.data[i] < ' ' ? '?' : text.data[i]; /* it is shown to people */
    name[text.len] = '\0';
    return true;
}

bool mu_roster_read_record(struct mu_slice record, int64_t *ret_pid, char name[static MU_ROSTER_NAME_MAX])
{
    const char *blank = record.len == 0 ? NULL : memchr(record.data, ' ', record.len);
    size_t skip = blank == NULL ? 0 : (size_t)(blank - record.data) + 1;
    struct mu_slice rest = mu_slice(record.data + skip, record.len - skip);

    return blank != NULL && record.len < MU_ROSTER_RECORD_MAX && take_number(&rest, ret_pid) && copy_name(rest, name);
}

/* ---- Who comes and goes ---- */

static struct mu_roster_node *find(const struct mu_roster *roster, uint64_t connection)
{
    for (struct mu_list *link = roster->nodes.next; link != &roster->nodes; link = link->next) {
        struct mu_roster_node *node = MU_LIST_ITEM(link, struct mu_roster_node, link);

        if (node->connection == connection)
            return node;
    }
    return NULL;
}

/* By rank, and those of one rank as they came. */
static void sort_in(struct mu_roster *roster, struct mu_roster_node *node)
{
    struct mu_list *before = roster->nodes.prev;

    while (before != &roster->nodes && MU_LIST_ITEM(before, struct mu_roster_node, link)->rank > node->rank)
        before = before->prev;
    mu_list_push_front(before, &node->link);
}

int mu_roster_announced(struct mu_roster *roster, uint64_t connection, struct mu_slice text)
{
    struct mu_roster_node *node = find(roster, connection), read = { .connection = connection };

    if (mu_slice_equal(text, mu_slice_str(goodbye))) {
        if (node != NULL)
            node->left = true;
        return 0;
    }
    if (node != NULL || !take_number(&text, &read.rank) || !mu_roster_read_record(text, &read.pid, read.name))
        return 0; /* each connection has one node */
    memcpy(read.record, text.data, text.len);
    node = malloc(sizeof *node);
    if (node == NULL)
        return MUSTER_ENOMEM;
    *node = read;
    mu_list_init(&node->link);
    sort_in(roster, node);
    return 0;
}

void mu_roster_counted(struct mu_roster *roster, uint64_t connection, int64_t count)
{
    struct mu_roster_node *node = find(roster, connection);

    roster->count = count;
    if (node != NULL)
        node->counted = true;
}

struct mu_roster_node *mu_roster_take(struct mu_roster *roster, uint64_t connection)
{
    struct mu_roster_node *node = find(roster, connection);

    if (node == NULL)
        return NULL;
    mu_list_remove(&node->link);
    roster->departed += node->counted;
    return node;
}

bool mu_roster_is_empty(const struct mu_roster *roster)
{
    return mu_list_empty(&roster->nodes);
}

int64_t mu_roster_present(const struct mu_roster *roster)
{
    return roster->count - roster->departed;
}

/* ---- Progress ---- */

void mu_roster_progress(const struct mu_roster *roster, bool open, struct mu_roster_progress *ret_progress)
{
    *ret_progress = (struct mu_roster_progress){ .open = open, .joined = mu_roster_present(roster) };
    for (const struct mu_list *link = roster->nodes.next;
         link != &roster->nodes && ret_progress->nodes_count < MU_ROSTER_SHOWN_MAX; link = link->next) {
        const struct mu_roster_node *node = MU_LIST_ITEM(link, struct mu_roster_node, link);
        size_t at = ret_progress->nodes_count;

        if (!node->counted)
            continue;
        memcpy(ret_progress->names[at], node->name, sizeof node->name);
        ret_progress->nodes[at] = (struct muster_node){ ret_progress->names[at], node->pid, -1 };
        ret_progress->nodes_count++;
    }
}

size_t mu_roster_write_progress(const struct mu_roster_progress *progress, char text[static MU_ROSTER_TEXT_MAX])
{
    int used = snprintf(text, MU_ROSTER_TEXT_MAX, "%d %" PRId64, progress->open, progress->joined);

    for (size_t i = 0; i < progress->nodes_count; i++)
        used += snprintf(text + used, (size_t)(MU_ROSTER_TEXT_MAX - used), "\n%" PRId64 " %s", progress->nodes[i].pid,
                         progress->nodes[i].name);
    return (size_t)used;
}

bool mu_roster_read_progress(struct mu_slice text, struct mu_roster_progress *ret_progress)
{
    const char *end = text.data + text.len, *line_end;
    int64_t open = 0;

    *ret_progress = (struct mu_roster_progress){ .joined = 0 };
    for (bool first = true; text.data < end; first = false, text = mu_slice(line_end, (size_t)(end - line_end))) {
        struct mu_slice line;
        size_t at = ret_progress->nodes_count;

        if (!first)
            text = mu_slice(text.data + 1, text.len - 1); /* the newline */
        line_end = text.len == 0 ? NULL : memchr(text.data, '\n', text.len);
        line_end = line_end == NULL ? end : line_end;
        line = mu_slice(text.data, (size_t)(line_end - text.data));
        if (first) {
            if (!take_number(&line, &open) || !take_number(&line, &ret_progress->joined) || line.len > 0)
                return false;
        } else {
            if (at == MU_ROSTER_SHOWN_MAX || !take_number(&line, &ret_progress->nodes[at].pid) ||
                !copy_name(line, ret_progress->names[at]))
                return false;
            ret_progress->nodes[at].name = ret_progress->names[at];
            ret_progress->nodes[at].local_id = -1;
            ret_progress->nodes_count++;
        }
    }
    ret_progress->open = open != 0;
    return true;
}
