/* The GPUs of this machine, as the drivers and the PCI bus list them, and those of them that a worker sees. No driver
 * library is loaded, so their order is not always known: see mu_gpus_seen(). `root`: see base/kernel_files.h. */
#ifndef MU_CLI_GPUS_H
#define MU_CLI_GPUS_H

#include "muster.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MU_GPUS_MAX 1024      /* GPUs, and entries of a variable, that are looked at */
#define MU_GPU_ADDRESS_MAX 24 /* "0000:1b:00.0" */
#define MU_GPU_UUID_MAX 64    /* "GPU-..." */

#define MU_GPU_NODE_UNSAID (-1)  /* the firmware does not say it */
#define MU_GPU_NODE_UNKNOWN (-2) /* the kernel has no file about it */

enum mu_gpus_vendor { MU_GPUS_NONE, MU_GPUS_NVIDIA, MU_GPUS_AMD };

struct mu_gpu {
    char address[MU_GPU_ADDRESS_MAX]; /* on the PCI bus; "": not known */
    char uuid[MU_GPU_UUID_MAX];       /* "": not known */
    unsigned model;                   /* the vendor's number for it; 0: not known */
    int node;                         /* NUMA node, or one of the above */
    uint64_t order;                   /* of NVIDIA's: the PCI address as a number; of AMD's: the driver's number */
};

struct mu_gpus {
    enum mu_gpus_vendor vendor;
    struct mu_gpu items[MU_GPUS_MAX]; /* in the driver's order */
    size_t count;
    size_t devices; /* how many the driver offers; if it is not `count`, it is not known which of the items these are */
};

/* The GPUs of the first vendor that has some, NVIDIA before AMD. */
void mu_gpus_list(const char *root, struct mu_gpus *ret_gpus);

struct mu_gpus_variables { /* NULL: not set */
    const char *cuda;      /* CUDA_VISIBLE_DEVICES */
    const char *hip;   /* HIP_VISIBLE_DEVICES: with AMD's GPUs, and if it is not empty, it takes the place of `cuda` */
    const char *rocr;  /* ROCR_VISIBLE_DEVICES: with AMD's GPUs; the other lists count the devices that it leaves */
    const char *order; /* CUDA_DEVICE_ORDER */
};

/* How many devices a worker sees. The entries of a list count up to the first one that names no device, and none at all
 * if one comes twice. Without GPUs every number in a list is a device. */
size_t mu_gpus_count(const struct mu_gpus *gpus, const struct mu_gpus_variables *variables);

struct mu_gpu_seen {
    int node;            /* as in struct mu_gpu */
    const char *address; /* of `gpus`; NULL: it is not known which one it is, but all are on that node */
};

/* The devices that a worker sees, in its order; at most MU_GPUS_MAX. NVIDIA's are taken to be in the order of their PCI
 * addresses: CUDA says so with CUDA_DEVICE_ORDER=PCI_BUS_ID. Otherwise it puts the fastest first, so this is only right
 * if all are of one model. If they are not, or a device cannot be found by its name, that is an error, unless all GPUs
 * are on one NUMA node. */
int mu_gpus_seen(const struct mu_gpus *gpus, const struct mu_gpus_variables *variables,
                 struct mu_gpu_seen seen[static MU_GPUS_MAX], size_t *ret_count, struct muster_error *reterr);

#endif
