/* File timers: lines of JSON go into a table, and timers come out of it when they expire. Each worker has few timers,
 * so the table is a list. */
#include "agent/timer.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct request { /* borrows from the JSON */
    int32_t pid;
    int signal;
    double at_s;
    struct mu_slice scope;
};

static struct mu_timer *timer_of(const struct mu_list *item)
{
    return MU_LIST_ITEM(item, struct mu_timer, link);
}

void mu_timers_init(struct mu_timers *timers)
{
    memset(timers, 0, sizeof *timers);
    timers->budget.max = MU_TIMERS_BYTES_MAX;
    mu_list_init(&timers->all);
    mu_list_init(&timers->fallen);
}

static size_t size_of(size_t scope_len)
{
    return sizeof(struct mu_timer) + scope_len + 1;
}

static void drop(struct mu_timers *timers, struct mu_timer *timer)
{
    mu_list_remove(&timer->link);
    mu_budget_give(&timers->budget, size_of(timer->len));
    free(timer);
}

static void drop_fallen(struct mu_timers *timers)
{
    while (!mu_list_empty(&timers->fallen))
        drop(timers, timer_of(timers->fallen.next));
}

void mu_timers_done(struct mu_timers *timers)
{
    drop_fallen(timers);
    while (!mu_list_empty(&timers->all))
        drop(timers, timer_of(timers->all.next));
    assert(timers->budget.used == 0);
    mu_timers_init(timers);
}

/* ---- Requests ---- */

static struct mu_timer *find(struct mu_timers *timers, int32_t pid, struct mu_slice scope)
{
    MU_LIST_EACH (struct mu_timer, timer, &timers->all, link) {
        if (timer->pid == pid && mu_slice_equal(mu_slice(timer->scope, timer->len), scope))
            return timer;
    }
    return NULL;
}

/* The same timer keeps its place when it is acquired again. */
static int acquire(struct mu_timers *timers, const struct request *r, struct muster_error *reterr)
{
    struct mu_timer *timer = find(timers, r->pid, r->scope);

    if (timer == NULL) {
        if (timers->count == MU_TIMERS_MAX || !mu_budget_take(&timers->budget, size_of(r->scope.len)))
            return mu_fail(reterr, MUSTER_ELIMIT, "%zu timers are running: no more", timers->count);
        timer = malloc(size_of(r->scope.len));
        if (timer == NULL) {
            mu_budget_give(&timers->budget, size_of(r->scope.len));
            return mu_fail(reterr, MUSTER_ENOMEM, "no memory");
        }
        timer->pid = r->pid;
        timer->len = r->scope.len;
        memcpy(timer->scope, r->scope.data, r->scope.len);
        timer->scope[r->scope.len] = '\0';
        mu_list_push(&timers->all, &timer->link);
        timers->count++;
    }
    timer->signal = r->signal;
    timer->at_s = r->at_s;
    return 0;
}

static int apply(struct mu_timers *timers, const struct request *r, struct muster_error *reterr)
{
    struct mu_timer *timer;

    if (r->at_s >= 0)
        return acquire(timers, r, reterr);
    timer = find(timers, r->pid, r->scope);
    if (timer != NULL) {
        drop(timers, timer);
        timers->count--;
    }
    return 0;
}

static int read_request(const json_t *root, struct request *ret_request, struct muster_error *reterr)
{
    const json_t *pid = json_object_get(root, "pid"), *scope = json_object_get(root, "scope_id");
    const json_t *at = json_object_get(root, "expiration_time"), *number = json_object_get(root, "signal");

    if (!json_is_object(root))
        return mu_fail(reterr, MUSTER_EINVAL, "not a JSON object");
    /* 0 and negative numbers would be process groups. */
    if (!json_is_integer(pid) || json_integer_value(pid) <= 0 || json_integer_value(pid) > INT32_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "'pid' is not the number of a process");
    if (!json_is_string(scope))
        return mu_fail(reterr, MUSTER_EINVAL, "'scope_id' is not text");
    if (!json_is_number(at) || !isfinite(json_number_value(at)))
        return mu_fail(reterr, MUSTER_EINVAL, "'expiration_time' is not a number");
    if (!json_is_integer(number) || json_integer_value(number) >= NSIG)
        return mu_fail(reterr, MUSTER_EINVAL, "'signal' is not the number of a signal");
    *ret_request = (struct request){
        .pid = (int32_t)json_integer_value(pid),
        .signal = json_integer_value(number) > 0 ? (int)json_integer_value(number) : 0,
        .at_s = json_number_value(at),
        .scope = mu_slice(json_string_value(scope), json_string_length(scope)),
    };
    return 0;
}

static int take_line(struct mu_timers *timers, struct mu_slice line, struct muster_error *reterr)
{
    json_error_t why;
    struct request request = { 0 };
    json_t *root = json_loadb(line.data, line.len, JSON_DECODE_ANY, &why);
    int rc;

    if (root == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "not JSON: %s", why.text);
    rc = read_request(root, &request, reterr);
    if (rc == 0)
        rc = apply(timers, &request, reterr);
    json_decref(root);
    return rc;
}

static void on_line(struct mu_timers *timers, struct mu_slice line, bool too_long, mu_timers_bad *on_bad, void *ctx)
{
    struct muster_error error = { 0 };
    int rc;

    if (too_long)
        rc = mu_fail(&error, MUSTER_ELIMIT, "a line of more than %d bytes", MU_TIMER_LINE_MAX);
    else
        rc = take_line(timers, line, &error);
    timers->requests++;
    if (rc < 0) {
        timers->bad++;
        on_bad(ctx, line, &error);
    }
}

/* What comes before the line's end, or all of it. */
static void gather(struct mu_timers *timers, struct mu_slice part)
{
    size_t room = sizeof timers->line - timers->len;

    if (part.len > room)
        timers->skipping = true;
    if (part.len < room)
        room = part.len;
    if (room > 0)
        memcpy(timers->line + timers->len, part.data, room);
    timers->len += room;
}

void mu_timers_feed(struct mu_timers *timers, struct mu_slice bytes, mu_timers_bad *on_bad, void *ctx)
{
    while (bytes.len > 0) {
        const char *end = memchr(bytes.data, '\n', bytes.len);
        size_t len = end != NULL ? (size_t)(end - bytes.data) : bytes.len;

        gather(timers, mu_slice(bytes.data, len));
        if (end == NULL)
            return;
        on_line(timers, mu_slice(timers->line, timers->len), timers->skipping, on_bad, ctx);
        timers->len = 0;
        timers->skipping = false;
        bytes = mu_slice(bytes.data + len + 1, bytes.len - len - 1);
    }
}

/* ---- Time ---- */

bool mu_timers_next(const struct mu_timers *timers, double *ret_at_s)
{
    bool any = false;

    MU_LIST_EACH (const struct mu_timer, timer, &timers->all, link) {
        if (!any || timer->at_s < *ret_at_s)
            *ret_at_s = timer->at_s;
        any = true;
    }
    return any;
}

/* Before the first that expires later. */
static void insert_by_time(struct mu_list *list, struct mu_timer *timer)
{
    struct mu_list *link = list->next;

    while (link != list && timer_of(link)->at_s <= timer->at_s)
        link = link->next;
    mu_list_push(link, &timer->link);
}

/* All timers of the process leave the table; the expired ones fall. */
static void fell(struct mu_timers *timers, int32_t pid, double now_s)
{
    struct mu_list *link = timers->all.next;

    while (link != &timers->all) {
        struct mu_timer *timer = timer_of(link);

        link = link->next;
        if (timer->pid != pid)
            continue;
        timers->count--;
        if (timer->at_s <= now_s) {
            mu_list_remove(&timer->link);
            insert_by_time(&timers->fallen, timer);
        } else {
            drop(timers, timer);
        }
    }
}

static const struct mu_timer *first_expired(const struct mu_timers *timers, double now_s)
{
    MU_LIST_EACH (const struct mu_timer, timer, &timers->all, link) {
        if (timer->at_s <= now_s)
            return timer;
    }
    return NULL;
}

bool mu_timers_expire(struct mu_timers *timers, double now_s, struct mu_timer_expiry *ret_expiry)
{
    const struct mu_timer *expired = first_expired(timers, now_s);
    struct mu_list *link;

    drop_fallen(timers);
    if (expired == NULL)
        return false;
    *ret_expiry = (struct mu_timer_expiry){ .pid = expired->pid, .timers = &timers->fallen };
    fell(timers, expired->pid, now_s);
    for (link = timers->fallen.next; link != &timers->fallen; link = link->next) {
        ret_expiry->last = timer_of(link);
        ret_expiry->signal = ret_expiry->last->signal;
        if (ret_expiry->signal > 0)
            break;
    }
    while (link != &timers->fallen && link->next != &timers->fallen) /* those behind it are not told */
        drop(timers, timer_of(link->next));
    return true;
}

void mu_timers_forget(struct mu_timers *timers, int32_t pid)
{
    fell(timers, pid, -INFINITY);
}
