/* What a dynamic handler asks the store beside the document machine. */
#include "handler/inquiry.h"

#include <assert.h>

#define NOTHING ((struct mu_inquiry_effect){ .type = MU_INQUIRY_DO_NOTHING })

/* ---- The host ---- */

/* PyTorch does not say who hosts the store. A member of PyTorch's that has the endpoint's own name does. */
static const struct mu_node *stock_host(const struct mu_doc *doc, const char *store_host)
{
    for (size_t i = 0; store_host != NULL && i < doc->count; i++) {
        const struct mu_node *node = &doc->members[i].node;

        if ((doc->members[i].in & MU_DOC_PARTICIPANT) != 0 && !mu_node_is_ours(node) &&
            mu_slice_equal(node->name, mu_slice_str(store_host)))
            return node;
    }
    return NULL;
}

static struct mu_inquiry_effect ask_host(struct mu_inquiry *q)
{
    if (q->host == MU_INQUIRY_HOST_ASKED)
        return NOTHING;
    q->host = MU_INQUIRY_HOST_ASKED;
    return (struct mu_inquiry_effect){ .type = MU_INQUIRY_DO_ASK_HOST };
}

static struct mu_inquiry_effect take_host(struct mu_inquiry *q, const struct mu_inquiry_event *event)
{
    struct mu_inquiry_effect effect = { .type = MU_INQUIRY_DO_TAKE_HOST };
    const struct mu_node *stock = NULL;

    q->host = MU_INQUIRY_HOST_UNKNOWN;
    if (event->rc < 0)
        return NOTHING;
    if (event->text.len == 0)
        stock = stock_host(event->doc, q->config.store_host);
    else if (!mu_node_read(event->text, &effect.node))
        return NOTHING;
    effect.has_node = event->text.len > 0 || stock != NULL;
    if (stock != NULL)
        effect.node = *stock;
    if (effect.has_node)
        q->host = MU_INQUIRY_HOST_KNOWN;
    return effect;
}

/* ---- The board ---- */

static struct mu_inquiry_effect write_to(const struct mu_inquiry *q, enum mu_inquiry_effect_type type,
                                         const struct mu_notice_board_text *text)
{
    return (struct mu_inquiry_effect){ .type = type,
                                       .expected = mu_slice(q->board.now.bytes, q->board.now.len),
                                       .value = mu_slice(text->bytes, text->len) };
}

static struct mu_inquiry_effect write_if_due(struct mu_inquiry *q, uint64_t now_ms)
{
    if (q->board_asked || !mu_notice_board_is_due(&q->board, now_ms))
        return NOTHING;
    mu_notice_board_post(&q->board, now_ms, &q->post);
    q->board_asked = true;
    return write_to(q, MU_INQUIRY_DO_WRITE_BOARD, &q->post);
}

static struct mu_inquiry_effect see_board(struct mu_inquiry *q, const struct mu_inquiry_event *event)
{
    char before[MU_NOTICE_BOARD_NOTE_MAX], after[MU_NOTICE_BOARD_NOTE_MAX];
    bool first = !q->board.looked;

    assert(q->board_asked);
    q->board_asked = false;
    if (event->rc < 0 || q->board.state == MU_NOTICE_BOARD_OFF) /* it is written again at the next beat */
        return NOTHING;
    (void)mu_notice_board_note(&q->board, before);
    (void)mu_notice_board_see(&q->board, event->text, &q->post);
    (void)mu_notice_board_note(&q->board, after);
    if (strcmp(before, after) != 0)
        return (struct mu_inquiry_effect){ .type = MU_INQUIRY_DO_TELL_PROGRESS };
    return first ? write_if_due(q, event->now_ms) : NOTHING;
}

static struct mu_inquiry_effect begin_or_end_board(struct mu_inquiry *q, const struct mu_inquiry_event *event)
{
    const struct mu_inquiry_config *config = &q->config;

    if (event->waits == q->waits)
        return NOTHING;
    q->waits = event->waits;
    if (!q->waits)
        return mu_notice_board_end(&q->board, &q->last) ? write_to(q, MU_INQUIRY_DO_LEAVE_BOARD, &q->last) : NOTHING;
    if (config->has_board)
        mu_notice_board_begin(&q->board, config->run_id, config->name, config->nodes_min, config->nodes_max,
                              event->now_ms);
    return NOTHING;
}

/* ---- The machine ---- */

void mu_inquiry_init(struct mu_inquiry *q, const struct mu_inquiry_config *config)
{
    *q = (struct mu_inquiry){ .config = *config };
}

struct mu_inquiry_effect mu_inquiry_step(struct mu_inquiry *q, const struct mu_inquiry_event *event)
{
    switch (event->type) {
    case MU_INQUIRY_ON_TALKED:
        return begin_or_end_board(q, event);
    case MU_INQUIRY_ON_ANSWERED:
        return event->answer == MU_RDZV_STATE ? write_if_due(q, event->now_ms) : NOTHING;
    case MU_INQUIRY_ON_TOLD:
        return event->tell == MU_PART_TELL_BACKEND_UP ? ask_host(q) : NOTHING;
    case MU_INQUIRY_ON_PROGRESS:
        return q->host == MU_INQUIRY_HOST_UNKNOWN ? ask_host(q) : NOTHING;
    case MU_INQUIRY_ON_BOOT:
        return ask_host(q);
    case MU_INQUIRY_ON_HOST:
        return take_host(q, event);
    case MU_INQUIRY_ON_BOARD:
        return see_board(q, event);
    case MU_INQUIRY_ON_LEFT_BOARD:
        break;
    }
    return NOTHING;
}

/* ---- Ghosts ---- */

static bool may_be_ghost(const struct mu_node *node, const struct mu_node *me)
{
    return mu_slice_equal(node->name, me->name) && mu_node_is_ours(node) && node->pid > 0 && node->pid <= INT32_MAX &&
           node->pid != me->pid;
}

const struct mu_node *mu_inquiry_ghost(struct mu_inquiry *q, const struct mu_doc *doc, const struct mu_node *me,
                                       bool (*is_gone)(int64_t pid))
{
    for (size_t i = 0; !q->ghost_told && i < doc->count; i++) {
        const struct mu_node *node = &doc->members[i].node;

        q->ghost_told = may_be_ghost(node, me) && is_gone(node->pid);
        if (q->ghost_told)
            return node;
    }
    return NULL;
}
