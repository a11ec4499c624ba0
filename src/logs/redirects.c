/* Which streams of which worker go where: the texts of --redirects and --tee. */
#include "logs/redirects.h"

#define PATTERN_ALL "[0123]"
#define PATTERN_RANKS "RANK:[0123],RANK:[0123],..."

static bool is_mask(char c)
{
    return c >= '0' && c <= '3';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool parse_ranks(const char *text, struct mu_redirects *ret)
{
    ret->by_rank = true;
    for (;; text += 4) {
        if (!is_digit(text[0]) || text[1] != ':' || !is_mask(text[2]))
            return false;
        ret->ranks[text[0] - '0'] = (uint8_t)(text[2] - '0');
        if (text[3] == '\0')
            return true;
        if (text[3] != ',')
            return false;
    }
}

int mu_redirects_parse(const char *option, const char *text, struct mu_redirects *ret, struct muster_error *reterr)
{
    struct mu_redirects redirects = { 0 };

    if (is_mask(text[0]) && text[1] == '\0')
        redirects.all = (uint8_t)(text[0] - '0');
    else if (!parse_ranks(text, &redirects))
        return mu_fail(reterr, MUSTER_EINVAL,
                       "%s: '%.200s' is neither " PATTERN_ALL " (all workers) nor " PATTERN_RANKS
                       " (by local rank, one digit each)",
                       option, text);
    *ret = redirects;
    return 0;
}

unsigned mu_redirects_of(const struct mu_redirects *redirects, uint32_t local_rank)
{
    if (!redirects->by_rank)
        return redirects->all;
    return local_rank < MU_REDIRECTS_NAMED_MAX ? redirects->ranks[local_rank] : MU_STD_NONE;
}
