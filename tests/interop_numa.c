/* The CPUs that --numa-binding gives out on a machine that is a tree of files, for tests/interop. Reads lines "ROOT
 * MODE ALLOWED", and writes for each a line with the list of CPUs of every GPU, '|' between them; "error": there are
 * none for it. */
#include "cli/gpus.h"
#include "cli/numa.h"

#include <stdio.h>
#include <stdlib.h>

static struct mu_gpus gpus;
static struct mu_gpu_seen seen[MU_GPUS_MAX];
static struct mu_numa numa;

static void show(const char *root, enum mu_numa_mode mode, const struct mu_cpus *allowed)
{
    const struct mu_gpus_variables variables = { 0 };
    static int nodes[MU_GPUS_MAX];
    size_t count = 0;

    mu_gpus_list(root, &gpus);
    if (mu_gpus_seen(&gpus, &variables, seen, &count, NULL) < 0 || mu_numa_read(root, mode, allowed, &numa, NULL) < 0) {
        puts("error");
        return;
    }
    for (size_t i = 0; i < count; i++)
        nodes[i] = seen[i].node < 0 ? 0 : seen[i].node;
    for (size_t i = 0; i < count; i++) {
        struct mu_binding binding;
        char room[256];
        int rc = mu_numa_choose(&numa, mode, nodes, count, i, &binding, NULL);

        printf("%s%s", i == 0 ? "" : "|", rc < 0 ? "error" : mu_cpus_text(&binding.cpus, room, sizeof room));
    }
    puts("");
}

int main(void)
{
    char root[512], name[16], list[1024];

    while (scanf("%511s %15s %1023s", root, name, list) == 3) {
        enum mu_numa_mode mode;
        struct mu_cpus allowed;

        if (!mu_numa_mode_parse(name, &mode) || !mu_cpus_parse(list, &allowed))
            return EXIT_FAILURE;
        show(root, mode, &allowed);
    }
    return EXIT_SUCCESS;
}
