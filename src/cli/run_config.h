/* Everything that `muster run` needs to know before it does anything: options, variables and this machine, checked in
 * stock's order and resolved. */
#ifndef MU_CLI_RUN_CONFIG_H
#define MU_CLI_RUN_CONFIG_H

#include "base/arena.h"
#include "base/rng.h"
#include "cli/run_binding.h"
#include "cli/run_command.h"
#include "handler/boot.h"
#include "logs/filters.h"
#include "logs/redirects.h"
#include "proc/signals.h"

#define MU_RUN_NOTES_MAX 16
#define MU_RUN_ENDPOINT_BYTES 4096 /* of one that is made of --master-addr and --master-port */

#define MU_RUN_SHUTDOWN_TIMEOUT_MS 30000
#define MU_RUN_RDZV_TIMEOUT_S 900
#define MU_RUN_C10D_PORT 29400
#define MU_RUN_MASTER_PORT 29500

/* The environment of the launcher. Borrowed; it must outlive the configuration, and so must argv. */
struct mu_run_host {
    const char *program; /* "torchrun", "muster run" */
    bool is_launch;
    char *const *environ;
    const char *root;              /* in front of the paths that say what this machine has; "" */
    const struct mu_cpus *allowed; /* the CPUs of this process; NULL: the kernel is asked */
    struct mu_rng *rng;            /* for run ids */
};

/* Something to log once logging works; its text may have several lines. */
struct mu_run_note {
    enum muster_log_level level;
    const char *text;
};

/* Its texts are those of argv and `environ`, or its own. */
struct mu_run_config {
    const char *program;
    char *const *environ;

    /* The rendezvous: backend, endpoint, run id, nodes, local address and options, all resolved. */
    struct muster_rdzv_params *params;
    const char *rdzv_conf; /* as given: the options are in params */
    int64_t nodes_min, nodes_max;
    bool is_standalone;                                    /* asked for, or because nothing else makes sense */
    const char *backend_dirs[MU_RUN_BACKEND_DIRS_MAX + 1]; /* to be loaded before the handler is made */
    size_t backend_dirs_count;

    /* The worker group. */
    int64_t nproc;
    const char *role;
    int64_t max_restarts;
    double monitor_interval_s; /* above 0; nothing polls, so it is only shown */
    struct mu_run_command command;
    bool set_omp; /* OMP_NUM_THREADS=1 for the workers */
    bool virtual_local_rank;
    /* With virtual_local_rank: the list of devices, at least one for each worker. NULL: there is no list. */
    char **visible_devices;
    bool visible_devices_of_hip;  /* it is HIP_VISIBLE_DEVICES, which then is set for the workers too */
    const char *numa_binding;     /* "node", ...; NULL: workers are not bound */
    struct mu_run_bound *bound;   /* with numa_binding, each of them */
    bool workers_identical;       /* TORCH_ELASTIC_WORKER_IDENTICAL=1: ranks without asking the store */
    struct mu_boot_master master; /* options master_addr and master_port */

    /* Ends. */
    const char *signals_text; /* as given; workers get it too */
    struct mu_signals signals;
    int64_t shutdown_timeout_ms;
    int64_t exit_barrier_timeout_ms;    /* -1: no limit */
    int64_t uninterruptible_timeout_ms; /* 0: off */

    /* Output. */
    const char *log_dir; /* NULL: a new directory in tmp_dir; "/dev/null": no files at all */
    const char *tmp_dir;
    struct mu_redirects redirects, tee;
    struct mu_ranks_shown shown; /* on the console */
    struct mu_filters stdout_filters, stderr_filters;
    const char *prefix_template;     /* of tee'd lines; NULL: not set */
    enum muster_log_level log_level; /* LOGLEVEL, -q, -v */
    bool quiet, dry_run;
    unsigned verbose;

    /* What else the agent is told by variables. */
    const char *event_log_handler; /* "null", "console", "dynamic_rendezvous" or "file:PATH" */
    const char *metrics;           /* "null", "console" or "file:PATH" */
    const char *error_file;        /* TORCHELASTIC_ERROR_FILE of the launcher itself; NULL or not empty */
    bool file_timer;               /* TORCHELASTIC_ENABLE_FILE_TIMER=1 */
    const char *timer_file;        /* TORCHELASTIC_TIMER_FILE; NULL: not set */
    int health_port;               /* -1: none */
    const char *health_hosts;      /* where it listens: TORCHELASTIC_HEALTH_CHECK_HOST, --bind; NULL: loopback */
    int64_t health_timeout_ms;     /* MUSTER_HEALTH_CHECK_TIMEOUT; 0: the library's own */

    struct mu_run_note notes[MU_RUN_NOTES_MAX];
    size_t notes_count;
    struct mu_arena texts; /* notes, and what is put together */
};

/* On success the caller owns *ret_config. */
int mu_run_config_new(const struct mu_run_options *options, const struct mu_run_host *host,
                      struct mu_run_config **ret_config, struct mu_run_problem *ret_problem);
void mu_run_config_free(struct mu_run_config *config); /* NULL is fine */

/* What --dry-run prints: the configuration, the command and the environment of the first worker. */
void mu_run_config_text(struct mu_text *out, const struct mu_run_config *config);

#endif
