/* What one worker of a round is, and what its environment says about it. Pure. */
#ifndef MU_AGENT_WORKER_ENV_H
#define MU_AGENT_WORKER_ENV_H

#include "muster.h"

struct mu_agent_worker { /* borrowed */
    int64_t local_rank, rank, group_rank, role_rank;
    int64_t local_world_size, world_size, group_world_size, role_world_size;
    const char *master_addr;
    uint16_t master_port;
    int64_t restart_count;
    bool use_agent_store;
    const char *error_file; /* "": none */
    const char *timer_file; /* NULL: no timer runs; a variable that is inherited is passed on */
};

/* The same for all workers of an agent, unless it says otherwise. Borrowed. */
struct mu_worker_job {
    const char *role, *run_id;
    int64_t max_restarts;
    const char *signals;     /* TORCHELASTIC_SIGNALS_TO_HANDLE; NULL: not set */
    bool old_torch;          /* the workers' PyTorch is older than 2.2 */
    bool one_thread;         /* OMP_NUM_THREADS=1 */
    bool virtual_local_rank; /* LOCAL_RANK=0 for each */
    const char *devices;     /* CUDA_VISIBLE_DEVICES of this worker; NULL: as inherited */
    bool devices_of_hip;     /* HIP_VISIBLE_DEVICES gets the same value */
};

/* Whether the rendezvous is told to speak to PyTorch 1.13: the option `dialect`. */
bool mu_worker_is_for_1_13(const struct muster_rdzv_params *params);

/* `inherited` (NULL-terminated; its texts are borrowed) with a worker's variables on top, and without the launcher's
 * MUSTER_TOKEN_FILE, for execve(). `own_only`: what is put on top, without the rest. One block of memory for free();
 * NULL: there is none. */
char **mu_worker_environment(const struct mu_worker_job *job, const struct mu_agent_worker *worker,
                             const char *const *inherited, bool own_only);

#endif
