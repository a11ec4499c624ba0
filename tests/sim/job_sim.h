/* Whole jobs in a storm: what the parts of this simulator share. It stands on the rendezvous' simulator (rdzv_sim.h:
 * the clock, the store's document, the nodes) and puts an agent on top of every node.
 *
 *   sim_job.c     what the seed decides, the storm, the healing, the command line
 *   job_agent.c   an agent: the program's own machines, wired as the program wires them
 *   job_host.c    how a node finds its store
 *   job_boot.c    where the workers of a round meet
 *   job_kv.c      the plain keys of the store
 *   job_proc.c    the processes of an agent
 *   job_check.c   what must hold */
#ifndef JOB_SIM_H
#define JOB_SIM_H

#include "rdzv_sim.h"

#include "agent/job.h"
#include "proc/stop.h"

enum {
    AGENTS_MAX = 16, /* slots of nodes */
    SIZE_MAX_LOCAL = 3,
    PROCS_MAX = SIZE_MAX_LOCAL * 7, /* each worker, and what it starts */
    TEXT_MAX = 2048,                /* of a key or value */
    ENDINGS_MAX = IDS_MAX,
};

#define RUN_ID "job"

/* ---- What can go wrong with workers; the rest is of rdzv_sim.h ---- */

#define TROUBLES(X)                                                                                                    \
    X(FAIL, "fail")             /* some workers fail */                                                                \
    X(LOOP, "loop")             /* they fail whenever they are started, after the storm as well */                     \
    X(STUBBORN, "stubborn")     /* some ignore signals, but for the one that nobody can */                             \
    X(DYING, "dying")           /* some take their time to die */                                                      \
    X(LEFTOVERS, "leftovers")   /* some leave something behind */                                                      \
    X(UNKILLABLE, "unkillable") /* that nobody can kill */                                                             \
    X(NOSTART, "nostart")       /* some cannot be started */                                                           \
    X(UNEVEN, "uneven")         /* nodes are done at different times */                                                \
    X(IMPATIENT, "impatient")   /* a done agent waits for the others with a limit */                                   \
    X(MIXED, "mixed")           /* every round is taken for one with a PyTorch member, and its keys are used */        \
    X(HANG, "hang")             /* some hang in the kernel, which is noticed */                                        \
    X(BOOT, "boot")             /* where workers meet has to be agreed on; else it is there at once */                 \
    X(PORT, "port")             /* some ports are taken */                                                             \
    X(SELF, "self")             /* some addresses do not lead back to who has them */                                  \
    X(ASLEEP, "asleep")         /* some sleep in the kernel for a while before they die of a signal */                 \
    X(KEEPER, "keeper")         /* some agents lose their keeper */                                                    \
    X(BELOW, "below")           /* what nobody can kill has children */                                                \
    X(DARK, "dark")             /* after the storm the store is away for good, with its host if it has one */          \
    X(FIND, "find")             /* the store has to be found (job_host.c); else it is there at once */                 \
    X(NAME, "name")             /* some names cannot be resolved for a while, or lead elsewhere */                     \
    X(TAKEN, "taken")           /* the port of the store's host is taken for a while */                                \
    X(MUTE, "mute")             /* some connections to the store are taken, and not answered */

enum trouble {
#define X(name, text) T_##name,
    TROUBLES(X)
#undef X
        TROUBLES_COUNT,
};

extern const char *const trouble_names[TROUBLES_COUNT];

/* ---- Processes ---- */

struct proc {
    pid_t pid;
    bool alive, leader;
    int parent;   /* in the table; -1: the agent */
    int32_t rank; /* of the worker in whose group it is; -1: in none */
    bool fails, ignores, hangs, manager, foreign;
    uint64_t end_us;   /* when it ends, as things are */
    uint64_t stays_us; /* so long after its parent */
    uint64_t sleep_us; /* in the kernel, when a signal is to end it; 0: not */
    uint64_t wake_us;  /* 0: it has not slept */
    uint64_t die_us;   /* that it takes to die of a signal, and one more; 0: not known */
    bool killed;       /* has got SIGKILL */
    bool refused;      /* ... which was not permitted */
    bool below;        /* was listed because it is below one that does not end */
    bool ok, direct, told;
    bool reported; /* as one that cannot be killed */
};

struct processes {
    struct proc table[PROCS_MAX]; /* workers first, by rank */
    unsigned table_count, spawned, count, running;
    bool started, stopping, done, stopped, failed; /* failed: one of them did, by itself */
    bool drawn;                                    /* how long they take to die of SIGKILL */
    uint64_t draw_us;                              /* when it is; 0: never */
    struct mu_stop stop;
    uint64_t grace_ms;   /* until then, on the node's clock, workers need not be killed */
    uint64_t last_us;    /* when somebody last died, or the killing began */
    uint64_t generation; /* of the last start */
    uint64_t timer_generation;
};

/* ---- Agents ---- */

struct news { /* of the rendezvous */
    enum mu_part_tell tell;
    enum muster_rdzv_request request; /* that has failed */
    int64_t round, count, rank;
    uint64_t tag; /* of a round that was joined */
    bool old_dialect;
    unsigned incarnation;
    uint64_t away_ms, give_up_in_ms;
    unsigned ids[AGENTS_MAX]; /* the world's, or the lost */
    size_t ids_count;
    struct muster_error error;
};

struct agent {
    struct node *node;
    uint64_t life;
    char name[32];
    struct mu_job *job; /* NULL: there is no agent */
    uint64_t timer_us, timer_generation, order_us;
    int64_t size;
    uint64_t grace_ms;
    /* The round. */
    int64_t round, rank;
    uint64_t tag;
    unsigned incarnation;
    unsigned world[AGENTS_MAX]; /* ids by rank */
    size_t world_count;
    struct mu_ranks_result assigned;
    bool closed;
    bool lingers; /* until nobody else uses its store */
    struct processes procs;
    enum mu_group_state state;
    /* For the checks. */
    bool ended, personal; /* personal: it has a reason of its own to end */
    uint64_t done_us;
    bool done, behind, came_late; /* came_late: it wanted in when the job was closed */
    bool store_away;              /* by what it was told */
    uint64_t kv_failed_us, running_us, lost_us, signal_us, keeper_us;
};

struct job {
    bool on[TROUBLES_COUNT];
    unsigned percent[TROUBLES_COUNT];
    int64_t max_restarts;
    uint64_t run_us, barrier_ms, grace_ms, calm_us;
    bool clean; /* nothing but workers and members that come and go by themselves */
    struct agent agents[AGENTS_MAX];
    bool retired[AGENTS_MAX]; /* slots that ended of themselves: nobody starts them again */
    int64_t sizes[IDS_MAX];   /* workers of each identity */
    uint64_t died_us[IDS_MAX];
    int64_t done_round[IDS_MAX]; /* -1: it was not */
    uint64_t wiped_us;           /* when data were last lost; 0: never */
    uint64_t dark_us;            /* when the store went for good; 0: it has not */
    struct mu_rng other;         /* for processes */
    pid_t pids;
    /* Figures. */
    uint64_t rounds, jobs_succeeded, jobs_failed, ends, keepers, given_up;
};

extern struct job job;

/* sim_job.c: calls later, with what is due; nothing of a life that is over, nothing while a node is paused. `what` is
 * freed if it is not called. */
typedef void later_call(struct agent *agent, void *what, uint64_t number);
void later(uint64_t at_us, later_call *call, struct agent *agent, void *what, uint64_t number);
void later_in_store(uint64_t at_us, later_call *call, void *what);
bool trouble(enum trouble trouble);
void host_serves(struct node *node); /* the store is up, in its process */

/* job_agent.c */
void agent_birth(struct node *node);
void agent_bury(struct agent *agent);
void agent_hear(struct node *node, const struct mu_rdzv_effect *effect);
void agent_signal(struct agent *agent, int signal);
void agent_tell(struct agent *agent, struct mu_policy_event event); /* from the loop */
void agent_answer(struct agent *agent, enum mu_job_who who, struct mu_answer answer);

void agent_deliver(struct agent *agent, struct news *news); /* from the loop; frees it */

/* job_boot.c */
void boot_begin(void);
void boot_birth(struct agent *agent);
void boot_bury(struct agent *agent);
void boot_ask(struct agent *agent, enum mu_rdzv_event_type ask);
void boot_hear(struct agent *agent, const struct mu_rdzv_effect *effect, const struct news *news);
void boot_answer(struct agent *agent, enum mu_ask_kind kind, const struct mu_answer *answer);
bool boot_port_is_taken(const struct agent *agent);
void boot_check(void); /* each second */
void boot_check_starting(const struct agent *agent);

void boot_found(struct agent *agent, const struct muster_error *error); /* the store; or not: error */

/* job_host.c */
void host_begin(void);
void host_birth(struct agent *agent);
void host_find(struct agent *agent);
void host_check(void); /* each second */

/* job_kv.c */
#define WHO_BOOT ((enum mu_job_who)(MU_JOB_KEY_GC + 1)) /* who asks, beside the machines of a job */
void kv_begin(void);
void kv_end(void);
void kv_sync(void); /* with what the store has become */
void kv_ask(struct agent *agent, enum mu_job_who who, const struct mu_ask *ask);
#define MADE_UP_ROUND 999999
#define MADE_UP "999999"
void kv_meddle(void); /* a stranger writes something: garbage, or what looks like a value of MADE_UP_ROUND */
bool kv_find(const char *key, struct mu_slice *ret_value, uint64_t *ret_born_us);

/* job_proc.c: what they do arrives at the policy from the loop */
bool procs_start(struct agent *agent); /* false: not all could be */
void procs_stop(struct agent *agent, int signal, uint64_t grace_ms);
bool procs_any(const struct agent *agent);
bool procs_killed(const struct agent *agent); /* all workers, or they are dead */
void procs_birth(struct agent *agent);
void procs_bury(struct agent *agent);

/* job_check.c */
void check_job_begin(void);
void check_joining(const struct agent *agent);
void check_boot_failed(struct agent *agent);
void check_starting(struct agent *agent);
void check_lost(const struct agent *agent);
void check_removed(const struct agent *agent);
void check_step(struct agent *agent, const struct mu_policy_event *event, enum mu_policy_phase before,
                const struct mu_policy_effects *effects);
void check_fail_job(const struct agent *agent);
void check_state(struct agent *agent, enum mu_group_state state);
void check_states(const struct agent *agent);
void check_ending(struct agent *agent, const struct mu_policy_outcome *outcome);
void check_given_up(struct agent *agent, const struct proc *proc, bool cannot_be_killed);
void check_stopping(const struct agent *agent);
void check_each_second(void);
void check_calm(void);
void check_over(void);

#endif
