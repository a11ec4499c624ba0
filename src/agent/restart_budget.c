/* The job's budget as text. See restart_budget.h. */
#include "agent/restart_budget.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int mu_restart_budget_write(char text[static MU_RESTART_BUDGET_MAX], const struct mu_restart_budget *budget,
                            const char *node)
{
    int len =
        snprintf(text, MU_RESTART_BUDGET_MAX, "%" PRId64 " %" PRId64 ".%016" PRIx64 "%s%.*s", budget->count,
                 budget->round, budget->tag, node == NULL ? "" : " ", MU_ROUND_PAYER_MAX, node == NULL ? "" : node);

    assert(len > 0 && len < MU_RESTART_BUDGET_MAX);
    return len;
}

/* Digits up to `end`, which is stepped over; at most 18. */
static bool take_number(const char **at, char end, int64_t *ret_number)
{
    int64_t number = 0;
    unsigned digits = 0;

    for (; **at >= '0' && **at <= '9' && digits < 18; digits++)
        number = number * 10 + (*(*at)++ - '0');
    if (digits == 0 || *(*at)++ != end)
        return false;
    *ret_number = number;
    return true;
}

bool mu_restart_budget_read(struct mu_slice text, struct mu_restart_budget *ret_budget)
{
    char copy[MU_RESTART_BUDGET_MAX];
    size_t len = text.len < sizeof copy ? text.len : sizeof copy - 1; /* whoever has paid may have any name */
    const char *at = copy;
    struct mu_restart_budget budget = { 0 };

    if (len > 0)
        memcpy(copy, text.data, len);
    copy[len] = '\0';
    if (!take_number(&at, ' ', &budget.count) || !take_number(&at, '.', &budget.round) ||
        !mu_round_read_tag(at, &budget.tag) || (at[MU_ROUND_TAG_LEN] != '\0' && at[MU_ROUND_TAG_LEN] != ' ') ||
        budget.count > MU_ROUND_COUNT_MAX)
        return false;
    budget.charged = at[MU_ROUND_TAG_LEN] == ' ';
    budget.used_up = strcmp(at + MU_ROUND_TAG_LEN, " " MU_RESTART_BUDGET_USED_UP) == 0;
    *ret_budget = budget;
    return true;
}
