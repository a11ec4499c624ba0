/* GPUs as drivers and the PCI bus list them. */
#include "cli/gpus.h"

#include "base/error.h"
#include "base/kernel_files.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VENDOR_NVIDIA = 0x10de, CLASS_DISPLAY = 0x03 };

/* ---- The list ---- */

struct address {
    unsigned domain, bus, device, function;
};

static bool parse_address(const char *text, struct address *ret_address)
{
    int end = 0;

    return sscanf(text, "%x:%x:%x.%x%n", &ret_address->domain, &ret_address->bus, &ret_address->device,
                  &ret_address->function, &end) == 4 &&
           text[end] == '\0';
}

static void address_text(struct address address, char text[static MU_GPU_ADDRESS_MAX])
{
    (void)snprintf(text, MU_GPU_ADDRESS_MAX, "%04x:%02x:%02x.%x", address.domain, address.bus & 0xff,
                   address.device & 0x1f, address.function & 0x7);
}

/* A number from a file of the device; `otherwise`: there is none. */
static long pci_number(const char *root, const char *address, const char *name, long otherwise)
{
    char text[MU_KERNEL_FILES_TEXT_MAX], *end;
    long number;

    if (!mu_kernel_files_read(root, text, "/sys/bus/pci/devices/%s/%s", address, name))
        return otherwise;
    number = strtol(text, &end, 0);
    return end == text ? otherwise : number;
}

/* Gives the GPU its address, its order by it, and what the bus knows about it. */
static void place_at(const char *root, struct address address, struct mu_gpu *gpu)
{
    long node;

    address_text(address, gpu->address);
    gpu->order = (uint64_t)address.domain << 32 | address.bus << 16 | address.device << 8 | address.function;
    node = pci_number(root, gpu->address, "numa_node", MU_GPU_NODE_UNKNOWN);

    gpu->model = (unsigned)pci_number(root, gpu->address, "device", 0);
    if (node > INT_MAX)
        node = MU_GPU_NODE_UNKNOWN;
    gpu->node = node < 0 && node != MU_GPU_NODE_UNKNOWN ? MU_GPU_NODE_UNSAID : (int)node;
}

struct listing {
    const char *root;
    struct mu_gpus *gpus;
};

static struct mu_gpu *add_gpu(struct listing *listing)
{
    struct mu_gpus *gpus = listing->gpus;
    struct mu_gpu *gpu = gpus->count < MU_GPUS_MAX ? &gpus->items[gpus->count] : NULL;

    if (gpu == NULL)
        return NULL;
    *gpu = (struct mu_gpu){ .node = MU_GPU_NODE_UNKNOWN };
    gpus->count++;
    return gpu;
}

/* "GPU UUID: \t GPU-...". The driver writes question marks until the GPU was used. */
static void find_uuid(const char *information, char uuid[static MU_GPU_UUID_MAX])
{
    static const char key[] = "GPU UUID:";
    const char *at = strstr(information, key);
    size_t len;

    if (at == NULL)
        return;
    at += sizeof key - 1;
    at += strspn(at, " \t");
    len = strcspn(at, " \t\n");
    if (len < MU_GPU_UUID_MAX && memchr(at, '?', len) == NULL)
        (void)snprintf(uuid, MU_GPU_UUID_MAX, "%.*s", (int)len, at);
}

static void found_nvidia(void *ctx, const char *name)
{
    struct listing *listing = ctx;
    struct mu_gpu *gpu = add_gpu(listing);
    char text[MU_KERNEL_FILES_TEXT_MAX];
    struct address address;

    if (gpu == NULL)
        return;
    if (mu_kernel_files_read(listing->root, text, "/proc/driver/nvidia/gpus/%s/information", name))
        find_uuid(text, gpu->uuid);
    if (parse_address(name, &address))
        place_at(listing->root, address, gpu);
}

/* Of the PCI bus, for where the driver's list is hidden. */
static void found_device(void *ctx, const char *name)
{
    struct listing *listing = ctx;
    struct address address;
    struct mu_gpu *gpu;

    if (!parse_address(name, &address) || pci_number(listing->root, name, "vendor", 0) != VENDOR_NVIDIA ||
        pci_number(listing->root, name, "class", 0) >> 16 != CLASS_DISPLAY)
        return;
    gpu = add_gpu(listing);
    if (gpu != NULL)
        place_at(listing->root, address, gpu);
}

static int by_order(const void *a, const void *b)
{
    const struct mu_gpu *x = a, *y = b;

    return x->order < y->order ? -1 : x->order > y->order;
}

/* nvidia0, but not nvidiactl or nvidia-uvm */
static void found_node(void *ctx, const char *name)
{
    static const char prefix[] = "nvidia";
    const char *number = name + sizeof prefix - 1;
    size_t *count = ctx;

    if (strncmp(name, prefix, sizeof prefix - 1) == 0 && number[0] != '\0' &&
        number[strspn(number, "0123456789")] == '\0')
        (*count)++;
}

/* 0: it is not there. */
static uint64_t property(const char *lines, const char *name)
{
    uint64_t value;

    return mu_kernel_files_number(lines, name, &value) ? value : 0;
}

/* AMD's list also has the CPUs: they have no SIMD units. Devices that this process may not use cannot be read. */
static void found_amd(void *ctx, const char *name)
{
    struct listing *listing = ctx;
    char text[MU_KERNEL_FILES_TEXT_MAX];
    uint64_t place, id;
    struct address address;
    struct mu_gpu *gpu;

    if (!mu_kernel_files_read(listing->root, text, "/sys/class/kfd/kfd/topology/nodes/%s/properties", name) ||
        property(text, "simd_count") == 0)
        return;
    gpu = add_gpu(listing);
    if (gpu == NULL)
        return;
    id = property(text, "unique_id");
    if (id != 0)
        (void)snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-%016" PRIx64, id);
    place = property(text, "location_id");
    address = (struct address){ .domain = (unsigned)property(text, "domain"),
                                .bus = (unsigned)(place >> 8),
                                .device = (unsigned)(place >> 3),
                                .function = (unsigned)place };
    if (place != 0)
        place_at(listing->root, address, gpu);
    address.function = 0; /* what stands there may be the number of a partition of the GPU */
    if (place != 0 && gpu->node == MU_GPU_NODE_UNKNOWN)
        place_at(listing->root, address, gpu);
    gpu->order = strtoul(name, NULL, 10);
}

void mu_gpus_list(const char *root, struct mu_gpus *ret_gpus)
{
    struct listing listing = { .root = root, .gpus = ret_gpus };

    ret_gpus->vendor = MU_GPUS_NVIDIA;
    ret_gpus->count = ret_gpus->devices = 0;
    (void)mu_kernel_files_each(root, "/proc/driver/nvidia/gpus", found_nvidia, &listing);
    ret_gpus->devices = ret_gpus->count;
    if (ret_gpus->devices == 0) { /* a container may see the devices only */
        (void)mu_kernel_files_each(root, "/dev", found_node, &ret_gpus->devices);
        if (ret_gpus->devices > 0)
            (void)mu_kernel_files_each(root, "/sys/bus/pci/devices", found_device, &listing);
    }
    qsort(ret_gpus->items, ret_gpus->count, sizeof ret_gpus->items[0], by_order);
    if (ret_gpus->devices > 0)
        return;
    (void)mu_kernel_files_each(root, "/sys/class/kfd/kfd/topology/nodes", found_amd, &listing);
    qsort(ret_gpus->items, ret_gpus->count, sizeof ret_gpus->items[0], by_order);
    ret_gpus->devices = ret_gpus->count;
    ret_gpus->vendor = ret_gpus->devices > 0 ? MU_GPUS_AMD : MU_GPUS_NONE;
}

/* ---- What is visible ---- */

static const char *skip_blanks(const char *text)
{
    while (*text == ' ' || (*text >= '\t' && *text <= '\r'))
        text++;
    return text;
}

static bool is_name(const char *entry)
{
    return strncmp(entry, "GPU-", 4) == 0 || strncmp(entry, "MIG-", 4) == 0;
}

/* One entry as CUDA takes it: "2", or GPU-... and MIG-... once the first one was such a name. False: it ends the
 * list. */
static bool is_valid(const char *entry, const char *first, bool names, size_t devices)
{
    char *end;
    long index;

    if (names)
        return strncmp(entry, first, 4) == 0;
    index = strtol(entry, &end, 10);
    return end > entry && index >= 0 && (devices == 0 || (size_t)index < devices);
}

static bool is_same(const char *a, const char *b)
{
    if (is_name(a))
        return strcspn(a, ",") == strcspn(b, ",") && strncmp(a, b, strcspn(a, ",")) == 0;
    return strtol(a, NULL, 10) == strtol(b, NULL, 10);
}

/* Where the entries begin. */
static size_t split(const char *visible, size_t devices, const char *entries[static MU_GPUS_MAX])
{
    const char *at = visible;
    bool names = is_name(visible);
    size_t count = 0;

    while (count < MU_GPUS_MAX) {
        entries[count] = names ? at : skip_blanks(at); /* there are no blanks before names */
        if (!is_valid(entries[count], entries[0], names, devices))
            return count;
        for (size_t i = 0; i < count; i++) {
            if (is_same(entries[i], entries[count]))
                return 0;
        }
        at = entries[count] + strcspn(entries[count], ",");
        count++;
        if (*at == '\0')
            return count;
        at++;
    }
    return count;
}

static bool is_set(const char *list)
{
    return list != NULL && list[0] != '\0';
}

/* With AMD's devices ROCR_VISIBLE_DEVICES comes first; the other lists count only the devices that it leaves. */
static const char *first_list(const struct mu_gpus *gpus, const struct mu_gpus_variables *variables)
{
    return gpus->vendor == MU_GPUS_AMD ? variables->rocr : NULL;
}

static const char *second_list(const struct mu_gpus *gpus, const struct mu_gpus_variables *variables)
{
    return gpus->vendor == MU_GPUS_AMD && is_set(variables->hip) ? variables->hip : variables->cuda;
}

size_t mu_gpus_count(const struct mu_gpus *gpus, const struct mu_gpus_variables *variables)
{
    const char *entries[MU_GPUS_MAX], *first = first_list(gpus, variables), *second = second_list(gpus, variables);
    size_t offered = first == NULL ? gpus->devices : split(first, gpus->devices, entries);

    if (first != NULL && offered == 0)
        return 0;
    return second == NULL ? offered : split(second, offered, entries);
}

/* ---- Which they are ---- */

struct places { /* NULL: it is not known which GPU this is */
    const struct mu_gpu *items[MU_GPUS_MAX];
    size_t count;
};

/* The one whose UUID begins like that; NULL: none, or several. */
static const struct mu_gpu *find_name(const struct mu_gpus *gpus, const char *name, size_t len)
{
    const struct mu_gpu *found = NULL;

    for (size_t i = 0; i < gpus->count; i++) {
        if (strncmp(gpus->items[i].uuid, name, len) != 0)
            continue;
        if (found != NULL)
            return NULL;
        found = &gpus->items[i];
    }
    return found;
}

/* A number, a UUID or its beginning, or an older name of a part of a GPU (MIG-GPU-UUID/1/2). */
static const struct mu_gpu *find_entry(const struct mu_gpus *gpus, const struct places *offered, const char *entry)
{
    if (strncmp(entry, "GPU-", 4) == 0)
        return find_name(gpus, entry, strcspn(entry, ","));
    if (strncmp(entry, "MIG-GPU-", 8) == 0)
        return find_name(gpus, entry + 4, strcspn(entry + 4, "/,"));
    return is_name(entry) ? NULL : offered->items[strtol(entry, NULL, 10)];
}

static bool is_order_known(const struct mu_gpus *gpus, const struct mu_gpus_variables *variables)
{
    if (gpus->vendor != MU_GPUS_NVIDIA || (variables->order != NULL && strcmp(variables->order, "PCI_BUS_ID") == 0))
        return true;
    for (size_t i = 1; i < gpus->count; i++) {
        if (gpus->items[i].model != gpus->items[0].model)
            return false;
    }
    return true;
}

/* Those that the driver offers, by their numbers. */
static void number(const struct mu_gpus *gpus, const struct mu_gpus_variables *variables, struct places *ret_offered)
{
    bool known = gpus->count == gpus->devices && is_order_known(gpus, variables);

    ret_offered->count = gpus->devices < MU_GPUS_MAX ? gpus->devices : MU_GPUS_MAX;
    for (size_t i = 0; i < ret_offered->count; i++)
        ret_offered->items[i] = known ? &gpus->items[i] : NULL;
}

/* Leaves those that a list has, in its order. */
static void pick(const struct mu_gpus *gpus, const char *list, struct places *offered)
{
    const char *entries[MU_GPUS_MAX];
    const struct mu_gpu *picked[MU_GPUS_MAX];
    size_t count = offered->count == 0 ? 0 : split(list, offered->count, entries);

    for (size_t i = 0; i < count; i++)
        picked[i] = find_entry(gpus, offered, entries[i]);
    for (size_t i = 0; i < count; i++)
        offered->items[i] = picked[i];
    offered->count = count;
}

static bool are_on_one_node(const struct mu_gpus *gpus)
{
    for (size_t i = 0; i < gpus->count; i++) {
        if (gpus->items[i].node != gpus->items[0].node || gpus->items[i].node == MU_GPU_NODE_UNKNOWN)
            return false;
    }
    return gpus->count > 0;
}

static int not_known(const struct mu_gpus *gpus, const struct mu_gpus_variables *variables, size_t index,
                     struct muster_error *reterr)
{
    if (gpus->count != gpus->devices)
        return mu_fail(reterr, MUSTER_ENOTSUP,
                       "which GPU is device %zu? The driver offers %zu and the PCI bus has %zu, but there is no "
                       "/proc/driver/nvidia/gpus to say which belong together",
                       index, gpus->devices, gpus->count);
    if (!is_order_known(gpus, variables))
        return mu_fail(reterr, MUSTER_ENOTSUP,
                       "which GPU is device %zu? They are of several models, and CUDA puts the fastest first; set "
                       "CUDA_DEVICE_ORDER=PCI_BUS_ID",
                       index);
    return mu_fail(reterr, MUSTER_ENOTSUP, "which GPU is device %zu of '%s'? The driver's files do not say it", index,
                   second_list(gpus, variables) != NULL ? second_list(gpus, variables) : first_list(gpus, variables));
}

int mu_gpus_seen(const struct mu_gpus *gpus, const struct mu_gpus_variables *variables,
                 struct mu_gpu_seen seen[static MU_GPUS_MAX], size_t *ret_count, struct muster_error *reterr)
{
    const char *first = first_list(gpus, variables), *second = second_list(gpus, variables);
    bool one_node = are_on_one_node(gpus);
    struct places places;

    number(gpus, variables, &places);
    if (first != NULL)
        pick(gpus, first, &places);
    if (second != NULL)
        pick(gpus, second, &places);
    for (size_t i = 0; i < places.count; i++) {
        const struct mu_gpu *gpu = places.items[i];

        if (gpu == NULL && !one_node)
            return not_known(gpus, variables, i, reterr);
        seen[i].node = gpu == NULL ? gpus->items[0].node : gpu->node;
        seen[i].address = gpu == NULL ? NULL : gpu->address;
    }
    *ret_count = places.count;
    return 0;
}
