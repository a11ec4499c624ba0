/* How a round ends for an agent, and how the job does, where the rendezvous has a leader (rdzv/part.h). The leader
 * assigns ranks, hears what becomes of every node's workers, finds out why a round ended, counts restarts and ends the
 * job; an agent reports, and waits. So this machine is in the place of ranks.h, completion.h and key_gc.h in such a
 * round, and has no keys. It hears and says what completion.h does, and beside that REPORT. Pure; one machine for an
 * agent's life, started anew for every round.
 *
 *   WATCHING --done: reports it--> REPORTING --acknowledged--> WAITING --closed, succeeded--> ENDED (ALL_DONE)
 *      |                               |                          |
 *      |                               +------------+-------------+--the round is over: ENDED (BEHIND: leave, they
 *      |                                            |                regroup). While REPORTING: as soon as acknowledged
 *      |                                            +--removed, refused, or closed in another way: ENDED (OVER)
 *      |                                            +--the limit: ENDED (TIMEOUT)
 *      |                                            +--the store is silent: ENDED (AWAY)
 *      +--a worker of ours failed: reports it, once a round
 *      +--this node ends its part because nodes want to join: reports it, so that all stop together
 *      +--this node leaves for good, or is lost: reports why, once a round; nothing is reported after that
 *      +--the leader has ended the round: tells LOST with its cause; nodes want to join: tells WAITING
 *      +--closed as failed, or the round has ended in a job that was closed before: tells JOB_FAILED
 *   STOP, in every state: IDLE
 *
 * - A failure of ours costs what the leader says. It says so with the next round's seat, or closes the job.
 * - A node that is done stays a member until the job is closed, or its round is over. Only then is it known to be done
 *   when its DONE was acknowledged: so it does not leave before, unless its limit has come or the store is silent.
 * - The limits are those of completion.h. An agent that is not to wait at all still gives the leader
 *   MU_LED_CLOSE_MS, for it may have been the last. */
#ifndef MU_AGENT_LED_H
#define MU_AGENT_LED_H

#include "agent/completion.h"
#include "agent/ranks.h"

#define MU_LED_CLOSE_MS 1000 /* for the leader to close the job when the last node is done */

#define MU_LED_STATES(X)                                                                                               \
    X(IDLE, "idle")                                                                                                    \
    X(WATCHING, "watching")                                                                                            \
    X(REPORTING, "reporting") /* that we are done */                                                                   \
    X(WAITING, "waiting")     /* for the others */                                                                     \
    X(ENDED, "ended")

enum mu_led_state {
#define X(name, text) MU_LED_##name,
    MU_LED_STATES(X)
#undef X
};

const char *mu_led_state_text(enum mu_led_state value);

enum mu_led_said { MU_LED_SAID_NOTHING, MU_LED_SAID_AGAIN, MU_LED_SAID_FAILED, MU_LED_SAID_LEFT };

struct mu_led {
    enum mu_led_state state;
    struct mu_completion_effects *out; /* of this step ... */
    uint64_t now_ms;                   /* ... and its time */
    uint64_t barrier_ms;
    int64_t round, world_size;
    enum mu_led_said said;
    bool closed;    /* without a verdict: nobody joins any more, and nobody will say how it ended */
    bool succeeded; /* the job has, as was said before our workers were done: it was over, and somebody ran it again */
    bool removed;   /* the others go on without us */
    bool over;      /* REPORTING: the round is; `text` says how */
    bool told_over; /* the leader has ended the round, and we have told it */
    uint64_t deadline_ms, wait_until_ms;
    uint64_t away_ms; /* since when the store is away; UINT64_MAX: it is there */
    struct mu_part_report report;
    char reason[MU_PART_REPORT_MAX], text[MU_SETTLEMENT_TEXT_MAX + 128];
};

void mu_led_init(struct mu_led *led, uint64_t barrier_ms); /* as in struct mu_completion_config */

/* Same state, same event, same effects, always. `out` is overwritten. LISTEN, FAIL and ANSWER are not for this one. */
void mu_led_step(struct mu_led *led, const struct mu_completion_event *event, struct mu_completion_effects *out);
uint64_t mu_led_deadline_ms(const struct mu_led *led); /* when TIME is wanted; UINT64_MAX: never */

struct mu_ranks_result mu_led_ranks(const struct mu_part_seat *seat); /* what the ranks machine would have found */

#endif
