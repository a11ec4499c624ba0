/* The words of `muster join`. */
#include "cli/join_text.h"

#include "base/utf8.h"

#include <inttypes.h>

/* ---- Text ---- */

void mu_text_add_json(struct mu_text *text, const char *bytes)
{
    const char *end = bytes + strlen(bytes);
    size_t len;

    mu_text_add_bytes(text, "\"", 1);
    for (; bytes < end; bytes += len) {
        unsigned char byte = (unsigned char)*bytes;

        len = mu_utf8_len(bytes, (size_t)(end - bytes));
        if (len == 0) {
            mu_text_add_bytes(text, "\\ufffd", 6);
            len = 1;
        } else if (byte == '"' || byte == '\\') {
            mu_text_add(text, "\\%c", byte);
        } else if (byte < ' ' || byte == 0x7F) {
            mu_text_add(text, "\\u%04x", byte);
        } else {
            mu_text_add_bytes(text, bytes, len);
        }
    }
    mu_text_add_bytes(text, "\"", 1);
}

void mu_text_add_duration(struct mu_text *text, int64_t ms)
{
    int64_t seconds = ms <= 0 ? 0 : (ms - 1) / 1000 + 1;

    if (seconds < 60)
        mu_text_add(text, "%" PRId64 " s", seconds);
    else if (seconds < 3600)
        mu_text_add(text, "%" PRId64 " min %" PRId64 " s", seconds / 60, seconds % 60);
    else
        mu_text_add(text, "%" PRId64 " h %" PRId64 " min", seconds / 3600, seconds % 3600 / 60);
}

void mu_text_add_place(struct mu_text *text, const struct mu_join_about *about)
{
    mu_text_add_plain(text, about->backend);
    if (about->endpoint[0] != '\0')
        mu_text_add_around(text, " at ", about->endpoint, "");
}

/* An address with the same port is the endpoint's. */
static bool names_endpoint(const char *reason, const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':'), *port = strstr(reason, "port ");

    if (strstr(reason, colon != NULL ? colon : endpoint) != NULL)
        return true;
    return colon != NULL && port != NULL && strncmp(port + 5, colon + 1, strlen(colon + 1)) == 0;
}

void mu_text_add_error(struct mu_text *text, const struct mu_join_about *about, const struct muster_error *error)
{
    const char *reason = error != NULL ? error->text : "no reason is known", *step_end = strstr(reason, ": ");
    size_t step_len = step_end != NULL ? (size_t)(step_end - reason) : strlen(reason);

    mu_text_add_plain_slice(text, mu_slice(reason, step_len));
    if (about->endpoint[0] != '\0' && !names_endpoint(reason, about->endpoint)) {
        mu_text_add(text, " (");
        mu_text_add_place(text, about);
        mu_text_add(text, ")");
    }
    mu_text_add_plain(text, reason + step_len);
}

/* ---- Nodes ---- */

static void add_node(struct mu_text *text, const struct muster_node *node)
{
    mu_text_add_plain(text, node->name);
    if (node->pid >= 0)
        mu_text_add(text, " (pid %" PRId64 ")", node->pid);
}

void mu_text_add_nodes(struct mu_text *text, const struct muster_node *nodes, size_t count)
{
    for (size_t i = 0; i < count && i < MU_JOIN_NAMES_MAX; i++) {
        if (i > 0)
            mu_text_add(text, ", ");
        add_node(text, &nodes[i]);
    }
    if (count > MU_JOIN_NAMES_MAX)
        mu_text_add(text, " and %zu more", count - MU_JOIN_NAMES_MAX);
}

/* As PyTorch writes a node in its logs: NAME_PID_LOCALID. */
static void add_node_json(struct mu_text *text, const struct muster_node *node)
{
    struct mu_text plain = { 0 };

    mu_text_add(&plain, "%s", node->name);
    if (node->pid >= 0)
        mu_text_add(&plain, "_%" PRId64, node->pid);
    if (node->pid >= 0 && node->local_id >= 0)
        mu_text_add(&plain, "_%" PRId64, node->local_id);
    mu_text_add_bytes(&plain, "", 1); /* the NUL */
    if (plain.failed != 0)
        text->failed = plain.failed;
    else
        mu_text_add_json(text, plain.buf.data);
    mu_text_done(&plain);
}

static void add_nodes_json(struct mu_text *text, const struct muster_node *nodes, size_t count)
{
    mu_text_add(text, "[");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            mu_text_add(text, ", ");
        add_node_json(text, &nodes[i]);
    }
    mu_text_add(text, "]");
}

/* The event's own node, if the back end knows its members. */
static const struct muster_node *own_node(const struct muster_rdzv_event *event)
{
    int64_t rank = event->info->rank;

    return event->nodes != NULL && rank >= 0 && (uint64_t)rank < event->nodes_count ? &event->nodes[rank] : NULL;
}

/* ---- Lines for people ---- */

static void add_round(struct mu_text *out, int64_t round)
{
    if (round >= 0)
        mu_text_add(out, "round %" PRId64, round);
    else
        mu_text_add(out, "the group");
}

static void people_joined(struct mu_text *out, const struct mu_join_about *about, const struct muster_rdzv_event *event)
{
    const struct muster_rdzv_info *info = event->info;
    const struct muster_node *own = own_node(event);

    mu_text_add_around(out, "joined '", about->run_id, "'");
    mu_text_add(out, " as rank %" PRId64 " of %" PRId64 " (", info->rank, info->world_size);
    mu_text_add_plain(out, about->backend);
    if (info->round >= 0)
        mu_text_add(out, ", round %" PRId64, info->round);
    mu_text_add(out, "): ");
    if (own != NULL)
        add_node(out, own);
    else
        mu_text_add_plain(out, about->node);
    if (event->nodes_count > 0) {
        mu_text_add(out, "; members: ");
        mu_text_add_nodes(out, event->nodes, event->nodes_count);
    }
    if (info->bootstrap.master_addr[0] != '\0') {
        bool is_v6 = strchr(info->bootstrap.master_addr, ':') != NULL;

        mu_text_add_around(out, is_v6 ? "; master: [" : "; master: ", info->bootstrap.master_addr, is_v6 ? "]" : "");
        mu_text_add(out, ":%u", info->bootstrap.master_port);
    }
    mu_text_add(out, "\n");
}

static void people_lost(struct mu_text *out, const struct muster_rdzv_event *event)
{
    mu_text_add(out, "lost ");
    mu_text_add_nodes(out, event->nodes, event->nodes_count);
    mu_text_add(out, event->nodes_count == 1 ? ": it has left " : ": they have left ");
    add_round(out, event->round);
    mu_text_add(out, event->nodes_count == 1 ? ", or is dead\n" : ", or are dead\n");
}

static void people_waiting(struct mu_text *out, const struct muster_rdzv_event *event)
{
    mu_text_add(out, event->count == 1 ? "%" PRId64 " node wants to join; " : "%" PRId64 " nodes want to join; ",
                event->count);
    add_round(out, event->round);
    mu_text_add(out, " has to end first\n");
}

void mu_join_text_people(struct mu_text *out, const struct mu_join_about *about, const struct muster_rdzv_event *event)
{
    if (event->type == MUSTER_RDZV_JOINED)
        people_joined(out, about, event);
    else if (event->type == MUSTER_RDZV_WAITING)
        people_waiting(out, event);
    else if (event->type == MUSTER_RDZV_PEERS_LOST)
        people_lost(out, event);
    else if (event->type == MUSTER_RDZV_CLOSED)
        mu_text_add_around(out, "closed: nobody can join '", about->run_id, "' any more; its members may go on\n");
    else if (event->type == MUSTER_RDZV_LEFT)
        mu_text_add_around(out, "left '", about->run_id, "'\n");
}

/* ---- Lines for programs ---- */

static void add_member_json(struct mu_text *out, const char *name, const char *value)
{
    mu_text_add(out, ", \"%s\": ", name);
    mu_text_add_json(out, value);
}

static void add_round_json(struct mu_text *out, int64_t round)
{
    if (round >= 0)
        mu_text_add(out, ", \"round\": %" PRId64, round);
    else
        mu_text_add(out, ", \"round\": null");
}

static void json_joined(struct mu_text *out, const struct mu_join_about *about, const struct muster_rdzv_event *event)
{
    const struct muster_rdzv_info *info = event->info;
    const struct muster_node *own = own_node(event);

    add_member_json(out, "run_id", about->run_id);
    add_member_json(out, "backend", about->backend);
    add_round_json(out, info->round);
    mu_text_add(out, ", \"rank\": %" PRId64 ", \"world_size\": %" PRId64 ", \"node\": ", info->rank, info->world_size);
    if (own != NULL)
        add_node_json(out, own);
    else
        mu_text_add_json(out, about->node);
    mu_text_add(out, ", \"members\": ");
    if (event->nodes_count > 0)
        add_nodes_json(out, event->nodes, event->nodes_count);
    else
        mu_text_add(out, "null");
    if (info->bootstrap.master_addr[0] != '\0') {
        add_member_json(out, "master_addr", info->bootstrap.master_addr);
        mu_text_add(out, ", \"master_port\": %u", info->bootstrap.master_port);
    } else {
        mu_text_add(out, ", \"master_addr\": null, \"master_port\": null");
    }
}

static void add_error_json(struct mu_text *out, const struct muster_error *error)
{
    if (error == NULL)
        return;
    add_member_json(out, "code", muster_error_name(error->code));
    add_member_json(out, "error", error->text);
}

void mu_join_text_json(struct mu_text *out, const struct mu_join_about *about, const struct muster_rdzv_event *event)
{
    mu_text_add(out, "{\"event\": \"%s\"", muster_rdzv_event_name(event->type));
    if (event->type == MUSTER_RDZV_JOINED)
        json_joined(out, about, event);
    else
        add_round_json(out, event->round);
    if (event->type == MUSTER_RDZV_WAITING)
        mu_text_add(out, ", \"count\": %" PRId64, event->count);
    if (event->type == MUSTER_RDZV_PEERS_LOST) {
        mu_text_add(out, ", \"nodes\": ");
        add_nodes_json(out, event->nodes, event->nodes_count);
    }
    if (event->type == MUSTER_RDZV_FAILED || event->type == MUSTER_RDZV_BACKEND_DOWN)
        add_error_json(out, event->error);
    mu_text_add(out, "}\n");
}

/* ---- The status of a wait ---- */

static void add_nodes_count(struct mu_text *out, int64_t count)
{
    mu_text_add(out, "%" PRId64 " %s", count, count == 1 ? "node" : "nodes");
}

/* "3 of 4 nodes joined (a, b, c)" */
static void add_joined(struct mu_text *out, const struct mu_join_wait *wait)
{
    const struct muster_rdzv_progress *progress = wait->progress;

    mu_text_add(out, "%" PRId64 " of %" PRId64, progress->joined, progress->min_nodes);
    if (progress->max_nodes > progress->min_nodes)
        mu_text_add(out, " to %" PRId64, progress->max_nodes);
    mu_text_add(out, progress->max_nodes == 1 ? " node joined" : " nodes joined");
    if (wait->names[0] != '\0')
        mu_text_add(out, " (%s)", wait->names);
}

/* A round is open, and this node is in it or about to be: how many are missing, or how long the last call runs. */
static void add_gathering(struct mu_text *out, const struct mu_join_about *about, const struct mu_join_wait *wait)
{
    const struct muster_rdzv_progress *progress = wait->progress;
    int64_t missing = progress->min_nodes - progress->joined, room = progress->max_nodes - progress->joined;

    mu_text_add_around(out, "waiting for rendezvous '", about->run_id, "': ");
    if (progress->joined < 0) {
        mu_text_add_around(out, "the store at ", about->endpoint, " has not answered yet");
        return;
    }
    add_joined(out, wait);
    if (missing > 0) {
        mu_text_add(out, ", %" PRId64 " more needed", missing);
    } else if (progress->last_call_left_ms >= 0) {
        mu_text_add(out, ", room for %" PRId64 " more; last call ends in ", room > 0 ? room : 0);
        mu_text_add_duration(out, progress->last_call_left_ms - wait->progress_age_ms);
    }
}

/* "round 3 is full (4 nodes)"; how many are in it is not known on every back end. */
static void add_round_without_us(struct mu_text *out, const struct mu_join_wait *wait, const char *how)
{
    add_round(out, wait->round);
    mu_text_add(out, " is %s", how);
    if (wait->progress->joined > 0) {
        mu_text_add(out, " (");
        add_nodes_count(out, wait->progress->joined);
        mu_text_add(out, ")");
    }
}

static void add_spare(struct mu_text *out, const struct mu_join_about *about, const struct mu_join_wait *wait)
{
    mu_text_add_around(out, "waiting for a place in rendezvous '", about->run_id, "': ");
    add_round_without_us(out, wait, "full");
    if (wait->progress->spares > 1) {
        mu_text_add(out, "; ");
        add_nodes_count(out, wait->progress->spares);
        mu_text_add(out, " wait for a place");
    }
}

static void add_next_round(struct mu_text *out, const struct mu_join_about *about, const struct mu_join_wait *wait)
{
    mu_text_add_around(out, "waiting for the next round of rendezvous '", about->run_id, "': ");
    add_round_without_us(out, wait, "running");
    mu_text_add(out, "; ");
    add_nodes_count(out, wait->progress->waiting);
    mu_text_add(out, wait->progress->waiting == 1 ? " waits for the next" : " wait for the next");
}

static void add_progress(struct mu_text *out, const struct mu_join_about *about, const struct mu_join_wait *wait)
{
    const struct muster_rdzv_progress *progress = wait->progress;

    if (progress->spare)
        add_spare(out, about, wait);
    else if (progress->waiting > 0)
        add_next_round(out, about, wait);
    else
        add_gathering(out, about, wait);
    if (progress->join_left_ms >= 0) {
        mu_text_add(out, "; gives up in ");
        mu_text_add_duration(out, progress->join_left_ms - wait->progress_age_ms);
    }
}

void mu_join_text_status(struct mu_text *out, const struct mu_join_about *about, const struct mu_join_wait *wait)
{
    if (wait->progress != NULL && wait->down_ms < 0) {
        add_progress(out, about, wait);
        return;
    }
    mu_text_add_around(out, "waiting for rendezvous '", about->run_id, "'");
    if (about->endpoint[0] != '\0')
        mu_text_add_around(out, " at ", about->endpoint, "");
    if (wait->down_ms >= 0) {
        mu_text_add(out, ": no connection for ");
        mu_text_add_duration(out, wait->down_ms);
        mu_text_add(out, "; trying again");
    } else {
        mu_text_add(out, ": no answer yet, after ");
        mu_text_add_duration(out, wait->waited_ms);
    }
}
