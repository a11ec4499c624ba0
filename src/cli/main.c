/* The program: picks the command. */
#include "cli/cli.h"
#include "cli/shell_completion.h"
#include "proc/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static const char help[] = "muster: elastic launcher, rendezvous and store for distributed training\n"
                           "\n"
                           "usage: muster COMMAND [OPTIONS]\n"
                           "\n"
                           "commands:\n"
                           "  run        start the workers of a job on this node, as torchrun does\n"
                           "  launch     the same, as python -m torch.distributed.launch did\n"
                           "  join       join a rendezvous and print who is in it\n"
                           "  rdzv       close a rendezvous, or keep data with it\n"
                           "  store      run a key-value store that speaks PyTorch's TCPStore protocol,\n"
                           "             or look into one that is running\n"
                           "\n"
                           "options:\n"
                           "  --help     this text; 'muster COMMAND --help' tells more about a command\n"
                           "  --version  the version\n"
                           "  --print-completion SHELL\n"
                           "             print a script that completes muster's commands and options in\n"
                           "             bash, zsh, tcsh or fish\n";

/* A program may be started without its standard descriptors. The next thing opened would then take their place, and
 * output would end up in a socket. A descriptor is put there for which every read and write fails. */
static void occupy_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY); /* takes the lowest one: this */
    }
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    struct mu_startup startup;

    mu_startup_take(&startup);
    occupy_standard_descriptors();
    (void)signal(SIGPIPE, SIG_IGN); /* a peer or a reader that is gone is an error of the write */
    (void)signal(SIGXFSZ, SIG_IGN); /* and so is a file that has reached its limit (ulimit -f) */
    if (argc > 0 && mu_is_torchrun(argv[0]))
        return mu_cmd_run("torchrun", false, &startup, argv + 1);
    if (strcmp(command, "run") == 0)
        return mu_cmd_run("muster run", false, &startup, argv + 2);
    if (strcmp(command, "launch") == 0)
        return mu_cmd_run("muster launch", true, &startup, argv + 2);
    if (strcmp(command, "join") == 0)
        return mu_cmd_join(argv + 2);
    if (strcmp(command, "rdzv") == 0)
        return mu_cmd_rdzv(argv + 2);
    if (strcmp(command, "store") == 0)
        return mu_cmd_store(argv + 2);
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0 || strcmp(command, "help") == 0)
        return mu_cli_help("muster", help);
    if (strcmp(command, "--version") == 0) {
        (void)printf("muster %s\n", muster_version());
        return mu_cli_flush("muster");
    }
    if (strcmp(command, "--print-completion") == 0)
        return mu_cmd_print_completion("muster", "muster", argv[2]);
    if (strncmp(command, "--print-completion=", 19) == 0)
        return mu_cmd_print_completion("muster", "muster", command + 19);
    if (strcmp(command, "--complete") == 0)
        return mu_cmd_complete(argv + 2);
    if (command[0] == '\0') {
        (void)fputs(help, stderr);
        return MU_EXIT_USAGE;
    }
    return mu_cli_usage("muster", command[0] == '-' ? "unknown option '%s'" : "unknown command '%s'", command);
}
