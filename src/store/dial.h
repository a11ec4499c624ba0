/* Getting a connection: which address is tried when, and what the error says when none works. Pure.
 *
 *   RESOLVING --addresses--> TRYING --one connected, spoken to--> DONE
 *       ^                      | all failed
 *       +------ delay ---- RESTING            any state, at the deadline: FAILED
 *
 * Within a round the addresses are tried in turn, IPv6 and IPv4 alternating; the next one is started when the last one
 * failed or has been silent for a moment, while earlier ones go on. The first that connects is greeted; the others are
 * given up. Rounds are repeated after delays that grow and have jitter; the name is resolved again for each. */
#ifndef MU_STORE_DIAL_H
#define MU_STORE_DIAL_H

#include "base/rng.h"
#include "store/net.h"

#define MU_DIAL_ADDRS_MAX 16
#define MU_DIAL_NOTES_MAX 8
#define MU_DIAL_OVERLAP_MS 250   /* silence after which the next address is tried beside */
#define MU_DIAL_ATTEMPT_MS 10000 /* silence after which an attempt has failed */
#define MU_DIAL_DELAY_MS 50      /* before the second round; then 1.5 times as long each time, +-50 % */
#define MU_DIAL_DELAY_MAX_MS 10000

#define MU_DIAL_STATES(X)                                                                                              \
    X(RESOLVING, "resolving")                                                                                          \
    X(TRYING, "trying")                                                                                                \
    X(RESTING, "resting")                                                                                              \
    X(DONE, "done")                                                                                                    \
    X(FAILED, "failed")

enum mu_dial_state {
#define X(name, text) MU_DIAL_##name,
    MU_DIAL_STATES(X)
#undef X
};

enum mu_dial_event_type {
    MU_DIAL_START,
    MU_DIAL_RESOLVED,          /* addrs, count */
    MU_DIAL_UNRESOLVED,        /* why */
    MU_DIAL_ATTEMPT_CONNECTED, /* index */
    MU_DIAL_ATTEMPT_FAILED,    /* index, why; also when the greeting failed */
    MU_DIAL_ATTEMPT_GREETED,   /* index */
    MU_DIAL_HOPELESS,          /* index, why: something else answers there; trying again is no use */
    MU_DIAL_TIME,
};

struct mu_dial_event {
    enum mu_dial_event_type type;
    uint64_t now_ms;
    const union mu_addr *addrs;
    size_t count;
    size_t index;
    const char *why;
    bool refused; /* ATTEMPT_FAILED: the other end said no (refused or reset), which silence does not */
};

enum mu_dial_effect_type {
    MU_DIAL_RESOLVE,
    MU_DIAL_CONNECT, /* index */
    MU_DIAL_GREET,   /* index: speak to it; give up all others */
    MU_DIAL_GIVE_UP, /* all attempts */
    MU_DIAL_SUCCEED, /* index: the connection is there */
    MU_DIAL_FAIL,    /* dial->error says what was tried */
};

struct mu_dial_effect {
    enum mu_dial_effect_type type;
    size_t index;
};

struct mu_dial_effects {
    struct mu_dial_effect items[MU_DIAL_ADDRS_MAX + 4];
    unsigned count;
};

/* The same answer of the same address is one note, however often it came. */
struct mu_dial_note {
    char text[160];
    unsigned times;
};

struct mu_dial {
    enum mu_dial_state state;
    char target[MU_ENDPOINT_MAX]; /* as the user named it */
    struct mu_rng rng;
    uint64_t start_ms, deadline_ms, delay_ms;
    uint64_t wake_ms; /* when the current state wants MU_DIAL_TIME, the deadline aside */
    unsigned rounds;
    unsigned rounds_max; /* 0, as mu_dial_init() leaves it: as many as there is time for */
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    uint64_t since_ms[MU_DIAL_ADDRS_MAX]; /* when the attempt was started; 0: not under way */
    size_t addrs_count, started, under_way;
    bool greeting;
    bool said_no, was_silent; /* an address of this round */
    bool refused;             /* in the last whole round an address refused us and none was silent */
    struct mu_dial_note notes[MU_DIAL_NOTES_MAX];
    size_t notes_count;
    unsigned notes_dropped;
    struct muster_error error; /* in FAILED */
};

void mu_dial_init(struct mu_dial *dial, const char *host, uint16_t port, uint64_t now_ms, uint64_t timeout_ms,
                  uint64_t seed);
void mu_dial_step(struct mu_dial *dial, const struct mu_dial_event *event, struct mu_dial_effects *out);
uint64_t mu_dial_deadline_ms(const struct mu_dial *dial); /* UINT64_MAX once it is over */
const char *mu_dial_state_name(enum mu_dial_state value);

/* Names that need no resolver: numeric addresses and localhost. Returns how many addresses were put there. */
size_t mu_dial_known(const char *host, uint16_t port, union mu_addr addrs[static MU_DIAL_ADDRS_MAX]);
struct addrinfo;
size_t mu_dial_resolved(const struct addrinfo *list, union mu_addr addrs[static MU_DIAL_ADDRS_MAX]); /* the same */

#endif
