/* `--print-completion SHELL`, and what its scripts ask while the user types. */
#include "cli/cli.h"
#include "cli/run_options.h"
#include "cli/shell_completion.h"

#include <assert.h>

enum { PARTS_MAX = 32 };

static const struct mu_option top_options[] = {
    { "help", MU_OPTION_FLAG, 0, NULL },
    { "version", MU_OPTION_FLAG, 0, NULL },
    { "print-completion", MU_OPTION_TEXT, 0, MU_SHELL_COMPLETION_SHELLS },
    { NULL, MU_OPTION_FLAG, 0, NULL },
};
static const struct mu_option help_alone[] = { { "help", MU_OPTION_FLAG, 0, NULL }, { NULL, MU_OPTION_FLAG, 0, NULL } };

static bool option_at(const void *table, size_t index, struct mu_flag *ret_flag)
{
    const struct mu_option *option = (const struct mu_option *)table + index;

    if (option->name == NULL)
        return false;
    *ret_flag = (struct mu_flag){ .name = option->name,
                                  .takes_value = option->kind != MU_OPTION_FLAG,
                                  .values = option->values };
    return true;
}

struct parts {
    struct mu_shell_completion_part items[PARTS_MAX];
    size_t count;
};

static void add(struct parts *parts, struct mu_shell_completion_part part)
{
    assert(parts->count < PARTS_MAX);
    parts->items[parts->count++] = part;
}

static void find_parts(struct parts *parts)
{
    static const bool is_run = false, is_launch = true;
    const struct mu_option *options;
    const char *verb;

    add(parts, (struct mu_shell_completion_part){ "", "", option_at, top_options, false });
    add(parts, (struct mu_shell_completion_part){ "run", "", mu_run_options_flag, &is_run, true });
    add(parts, (struct mu_shell_completion_part){ "launch", "", mu_run_options_flag, &is_launch, true });
    add(parts, (struct mu_shell_completion_part){ "join", "", option_at, mu_join_options, false });
    add(parts, (struct mu_shell_completion_part){ "rdzv", "", option_at, help_alone, false });
    for (size_t i = 0; (verb = mu_cmd_rdzv_verb(i)) != NULL; i++)
        add(parts, (struct mu_shell_completion_part){ "rdzv", verb, option_at, mu_rdzv_options, false });
    add(parts, (struct mu_shell_completion_part){ "store", "", option_at, mu_store_options, false });
    for (size_t i = 0; (verb = mu_cmd_store_verb(i, &options)) != NULL; i++)
        add(parts, (struct mu_shell_completion_part){ "store", verb, option_at, options, false });
}

int mu_cmd_print_completion(const char *command, const char *program, const char *shell)
{
    struct parts parts = { .count = 0 };
    struct mu_text text = { 0 };

    find_parts(&parts);
    if (shell == NULL)
        return mu_cli_usage(command, "option '--print-completion' needs a value: one of " MU_SHELL_COMPLETION_SHELLS);
    if (!mu_shell_completion_script(&text, shell, program, parts.items, parts.count))
        return mu_cli_usage(command, "option '--print-completion': '%s' must be one of " MU_SHELL_COMPLETION_SHELLS,
                            shell);
    return mu_cli_print(command, &text);
}

int mu_cmd_complete(char **argv)
{
    struct parts parts = { .count = 0 };
    struct mu_text text = { 0 };

    find_parts(&parts);
    mu_shell_completion_offer(&text, parts.items, parts.count, (const char *const *)argv);
    return mu_cli_print("muster", &text);
}
