/* The kernel's count of out-of-memory kills: that of our own cgroup if it has one (the workers inherit the cgroup). The
 * root group of v2, old kernels and odd mounts have none: then the machine's count is used. */
#include "agent/oom.h"

#include "base/kernel_files.h"

#include <signal.h>
#include <string.h>

enum { SHELL_SIGNAL = 128 };

struct reading {
    const char *root;
    struct mu_oom *oom;
};

static bool count_in(const char *root, const char *mount, const char *group, const char *file, uint64_t *ret_count)
{
    char text[MU_KERNEL_FILES_TEXT_MAX];

    return mu_kernel_files_read(root, text, "%s%s%s", mount, group, file) &&
           mu_kernel_files_number(text, "oom_kill", ret_count);
}

/* In a cgroup namespace, or with a container's own mount, the group may be the root of the mount. */
static void found_group(void *ctx, const char *controllers, const char *group)
{
    bool is_v2 = controllers[0] == '\0';
    const char *mount = is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char *file = is_v2 ? "/memory.events" : "/memory.oom_control";
    const struct reading *r = ctx;

    if (r->oom->known || (!is_v2 && !mu_kernel_files_has_controller(controllers, "memory")))
        return;
    if (group[0] == '/' && strstr(group, "/..") == NULL)
        r->oom->known = count_in(r->root, mount, strcmp(group, "/") == 0 ? "" : group, file, &r->oom->kills);
    if (!r->oom->known)
        r->oom->known = count_in(r->root, mount, "", file, &r->oom->kills);
}

void mu_oom_read(const char *root, struct mu_oom *ret_oom)
{
    struct mu_oom oom = { 0 };
    struct reading reading = { root, &oom };

    mu_kernel_files_cgroups(root, found_group, &reading);
    if (!oom.known)
        oom.known = oom.of_machine = count_in(root, "/proc/vmstat", "", "", &oom.kills);
    *ret_oom = oom;
}

bool mu_oom_killed(const struct mu_oom *before, const struct mu_oom *after, int exit_code)
{
    if (exit_code != -SIGKILL && exit_code != SHELL_SIGNAL + SIGKILL)
        return false;
    return before->known && after->known && before->of_machine == after->of_machine && after->kills > before->kills;
}
