/* A worker's command and environment: every mode, every template, every variable. */
#include "run_scene.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Programs to be found ---- */

static char dir[64]; /* holds one/ and two/ */

static void put_program(const char *name, mode_t mode)
{
    char path[PATH_MAX];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static int setup(void **state)
{
    char path[PATH_MAX];

    (void)state;
    (void)strcpy(dir, "/tmp/muster-command-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, i == 0 ? "one" : "two");
        if (mkdir(path, 0700) < 0)
            return -1;
    }
    put_program("one/python", 0755);
    put_program("one/plain", 0644);
    put_program("two/python3", 0755);
    put_program("two/plain", 0755);
    put_program("two/text", 0644);
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = { "one/python", "one/plain", "two/python3", "two/plain",
                                         "two/text",   "one",       "two",         "" };
    char path[PATH_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (remove(path) < 0)
            return -1;
    }
    return 0;
}

/* "%" in variables and paths stands for the directory. */
static const char *in_dir(const char *text, char room[static SCENE_BYTES_MAX])
{
    char *to = room;

    for (; *text != '\0'; text++) {
        if (*text == '%')
            to = stpcpy(to, dir);
        else
            *to++ = *text;
    }
    *to = '\0';
    return room;
}

static void join_words(char *const *words, char text[static SCENE_BYTES_MAX])
{
    char *to = text;

    *to = '\0';
    for (char *const *word = words; *word != NULL; word++)
        to += sprintf(to, "%s%s", word == words ? "" : "|", *word);
}

static int init(struct scene *scene, struct mu_run_command *command, const char *argv, const char *variables,
                bool is_launch)
{
    char room[SCENE_BYTES_MAX];

    memset(command, 0, sizeof *command);
    if (scene_parse(scene, argv, in_dir(variables, room)) < 0)
        fail_msg("%s", scene->problem.error.text);
    return mu_run_command_init(command, &scene->options, is_launch, scene->environ.items, &scene->problem);
}

/* ---- Commands ---- */

static const struct {
    const char *argv, *variables;
    const char *command, *job, *entry_point;
} commands[] = {
    { "x.py|a|-b", "PATH=%/two", "%/two/python3|-u|x.py|a|-b", "x.py", "python3" },
    { "x.py", "PATH=%/one:%/two", "%/one/python|-u|x.py", "x.py", "python" },
    { "x.py", "PATH=:%/nowhere:%/two", "%/two/python3|-u|x.py", "x.py", "python3" },
    { "-m|pkg.mod|a", "PATH=%/two", "%/two/python3|-u|-m|pkg.mod|a", "pkg.mod", "python3" },
    { "x.py", "PATH=%/two|PYTHON_EXEC=%/one/python", "%/one/python|-u|x.py", "x.py", "python" },
    { "x.py", "PATH=%/two|PYTHON_EXEC=plain", "plain|-u|x.py", "x.py", "plain" },
    { "x.py", "PATH=%/two|PYTHON_EXEC=", "%/two/python3|-u|x.py", "x.py", "python3" },
    { "--no-python|plain|a", "PATH=%/one:%/two", "plain|a", "plain", "plain" },
    { "--no-python|/bin/sh|a", "PATH=", "/bin/sh|a", "/bin/sh", "sh" },
    { "--no-python|sh", "", "sh", "sh", "sh" }, /* without PATH there still is one */
    { "--no-python|sh|-c|'$$'", "", "sh|-c|'$$'", "sh", "sh" },
};

static void every_mode_has_its_command(void **state)
{
    char text[SCENE_BYTES_MAX], expected[SCENE_BYTES_MAX];
    struct mu_run_command command;
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(commands); i++) {
        if (init(&scene, &command, commands[i].argv, commands[i].variables, false) < 0)
            fail_msg("'%s': %s", commands[i].argv, scene.problem.error.text);
        join_words(command.argv, text);
        assert_string_equal(text, in_dir(commands[i].command, expected));
        assert_string_equal(command.job, commands[i].job);
        assert_string_equal(command.entry_point, commands[i].entry_point);
        assert_false(command.run_path);
        mu_run_command_done(&command);
    }
}

static const struct {
    const char *argv, *variables;
    enum mu_run_kind kind;
    const char *part;
} missing[] = {
    { "x.py", "PATH=%", MU_RUN_NOT_FOUND, "PYTHON_EXEC" },
    { "--run-path|x.py", "PATH=", MU_RUN_NOT_FOUND, "PYTHON_EXEC" },
    { "x.py", "PYTHON_EXEC=/nowhere/python", MU_RUN_NOT_FOUND, "'/nowhere/python'" },
    { "--no-python|plain", "PATH=%/one", MU_RUN_PERMISSION, "[Errno 13] Permission denied: 'plain'" },
    { "--no-python|text", "PATH=%/one:%/two", MU_RUN_PERMISSION, "'text'" },
    { "--no-python|nosuch", "PATH=%/one:%/two", MU_RUN_NOT_FOUND, "[Errno 2] No such file or directory: 'nosuch'" },
    { "--no-python|/etc/passwd", "", MU_RUN_PERMISSION, "'/etc/passwd'" },
    { "--no-python|/tmp", "", MU_RUN_PERMISSION, "'/tmp'" },
    { "--no-python|/etc/passwd/x", "", MU_RUN_NOT_FOUND, "Not a directory: '/etc/passwd/x'" },
    { "--no-python|", "PATH=%/one", MU_RUN_NOT_FOUND, "''" },
};

static void programs_that_cannot_be_run_are_named(void **state)
{
    struct mu_run_command command;
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(missing); i++) {
        if (init(&scene, &command, missing[i].argv, missing[i].variables, false) == 0)
            fail_msg("'%s' was taken", missing[i].argv);
        if (scene.problem.kind != missing[i].kind || strstr(scene.problem.error.text, missing[i].part) == NULL)
            fail_msg("'%s': %s: %s", missing[i].argv, mu_run_kind_name(scene.problem.kind), scene.problem.error.text);
        assert_null(command.argv);
    }
}

static void run_path_hands_the_file_to_an_interpreter(void **state)
{
    struct mu_run_command command;
    struct scene scene;
    char **argv;

    (void)state;
    assert_int_equal(init(&scene, &command, "--run-path|--no-python|-m|/x.py|a|$local_rank", "PATH=%/two", false), 0);
    assert_string_equal(command.argv[1], "-u");
    assert_string_equal(command.argv[2], "-c");
    assert_null(strchr(command.argv[3], '$'));
    assert_string_equal(command.argv[4], "/x.py");
    assert_string_equal(command.argv[5], "a");
    assert_true(command.run_path);
    assert_string_equal(command.job, "run_script_path");
    assert_string_equal(command.entry_point, "run_script_path");
    argv = mu_run_command_argv(&command, 3);
    assert_string_equal(argv[3], command.argv[3]);
    assert_string_equal(argv[6], "3");
    assert_null(argv[7]);
    free(argv);
    mu_run_command_done(&command);
}

static void the_older_command_gives_the_rank_as_an_argument(void **state)
{
    struct mu_run_command command;
    char text[SCENE_BYTES_MAX];
    struct scene scene;
    char **argv;

    (void)state;
    assert_int_equal(init(&scene, &command, "-m|x.py|a", "PYTHON_EXEC=/bin/true", true), 0);
    argv = mu_run_command_argv(&command, 2);
    join_words(argv, text);
    assert_string_equal(text, "/bin/true|-u|-m|x.py|--local-rank=2|a");
    free(argv);
    mu_run_command_done(&command);
}

static void templates_are_those_of_python(void **state)
{
    static const struct {
        const char *argument, *result;
    } rows[] = {
        { "$local_rank", "12" },
        { "${local_rank}", "12" },
        { "a$local_rank-b${local_rank}c", "a12-b12c" },
        { "$$", "$" },
        { "$$local_rank", "$local_rank" },
        { "$$$local_rank", "$12" },
        { "$other", "$other" },
        { "${other}", "${other}" },
        { "$local_rank2", "$local_rank2" },
        { "$local_ranks", "$local_ranks" },
        { "$LOCAL_RANK", "$LOCAL_RANK" },
        { "${local_rank", "${local_rank" },
        { "${local_rank2}", "${local_rank2}" },
        { "$", "$" },
        { "${", "${" },
        { "a$", "a$" },
        { "$local_rank$local_rank", "1212" },
        { "$local_rank.x", "12.x" },
        { "", "" },
    };
    struct mu_run_command command;
    struct scene scene;
    char line[256], **argv;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)snprintf(line, sizeof line, "--no-python|sh|%s", rows[i].argument);
        assert_int_equal(init(&scene, &command, line, "", false), 0);
        argv = mu_run_command_argv(&command, 12);
        assert_string_equal(argv[0], "sh");
        assert_string_equal(argv[1], rows[i].result);
        assert_null(argv[2]);
        free(argv);
        mu_run_command_done(&command);
    }
}

static void the_program_is_no_template(void **state)
{
    static char program[] = "$local_rank", *words[] = { program, NULL };
    const struct mu_run_command command = { .argv = words };
    char **argv = mu_run_command_argv(&command, 1);

    (void)state;
    assert_string_equal(argv[0], "$local_rank");
    free(argv);
}

static void ten_thousand_arguments_are_passed_on(void **state)
{
    enum { MANY = 10000 };
    static char *argv[MANY + 3], flag[] = "--no-python", program[] = "sh", word[] = "x$local_rank", *none[] = { NULL };
    struct mu_run_command command = { 0 };
    struct mu_run_options options;
    struct mu_run_problem problem;
    size_t count = 0;
    char **given;

    (void)state;
    argv[0] = flag;
    argv[1] = program;
    for (size_t i = 0; i < MANY; i++)
        argv[i + 2] = word;
    assert_int_equal(mu_run_options_parse(argv, false, none, &options, &problem), 0);
    assert_int_equal(mu_run_command_init(&command, &options, false, none, &problem), 0);
    given = mu_run_command_argv(&command, 7);
    while (given[count + 1] != NULL)
        assert_string_equal(given[1 + count++], "x7");
    assert_int_equal(count, MANY);
    free(given);
    mu_run_command_done(&command);
}

/* ---- Environment ---- */

static const struct mu_agent_worker worker = {
    .local_rank = 1,
    .rank = 3,
    .group_rank = 2,
    .role_rank = 4,
    .local_world_size = 2,
    .world_size = 5,
    .group_world_size = 6,
    .role_world_size = 7,
    .master_addr = "node1",
    .master_port = 41002,
    .restart_count = 8,
    .use_agent_store = true,
    .error_file = "/logs/error.json",
};

/* How often a variable is there. */
static size_t count_of(char **vars, const char *name)
{
    size_t count = 0, len = strlen(name);

    for (; *vars != NULL; vars++)
        count += strncmp(*vars, name, len) == 0 && (*vars)[len] == '=';
    return count;
}

#define LINE                                                                                                           \
    "--nproc-per-node=2|--max-restarts=9|--role=trainer|--rdzv-backend=c10d|--rdzv-endpoint=h:1|--rdzv-id=job7|"

static void a_worker_gets_every_variable(void **state)
{
    static const char *const rows[][2] = {
        { "LOCAL_RANK", "1" },
        { "RANK", "3" },
        { "GROUP_RANK", "2" },
        { "ROLE_RANK", "4" },
        { "ROLE_NAME", "trainer" },
        { "LOCAL_WORLD_SIZE", "2" },
        { "WORLD_SIZE", "5" },
        { "GROUP_WORLD_SIZE", "6" },
        { "ROLE_WORLD_SIZE", "7" },
        { "MASTER_ADDR", "node1" },
        { "MASTER_PORT", "41002" },
        { "TORCHELASTIC_RESTART_COUNT", "8" },
        { "TORCHELASTIC_MAX_RESTARTS", "9" },
        { "TORCHELASTIC_RUN_ID", "job7" },
        { "TORCHELASTIC_USE_AGENT_STORE", "True" },
        { "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT" },
        { "TORCHELASTIC_ERROR_FILE", "/logs/error.json" },
        { "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1" },
        { "OMP_NUM_THREADS", "1" },
        { "MINE", "kept" },
    };
    struct scene scene;
    size_t count = 0;
    char **vars;

    (void)state;
    scene_config(&scene, LINE "--rdzv-conf=engine=on|--no-python|/bin/sh", "MUSTER_TOKEN_FILE=/t|MINE=kept");
    vars = mu_run_environment(scene.config, &worker, false);
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *value = mu_run_variable(vars, rows[i][0]);

        if (value == NULL || strcmp(value, rows[i][1]) != 0)
            fail_msg("%s is '%s'", rows[i][0], value == NULL ? "(none)" : value);
    }
    while (vars[count] != NULL)
        count++;
    assert_int_equal(count, COUNT(rows)); /* and no more */
    free(vars);
    vars = mu_run_environment(scene.config, &worker, true);
    assert_null(mu_run_variable(vars, "MINE"));
    assert_string_equal(mu_run_variable(vars, "RANK"), "3");
    free(vars);
    scene_done(&scene);
}

static void only_an_old_pytorch_gets_the_old_name_of_its_variable(void **state)
{
    struct scene scene;
    char **vars;

    (void)state;
    scene_config(&scene, LINE "--rdzv-conf=dialect=1.13|--no-python|/bin/sh", "");
    vars = mu_run_environment(scene.config, &worker, false);
    assert_string_equal(mu_run_variable(vars, "NCCL_ASYNC_ERROR_HANDLING"), "1");
    free(vars);
    scene_done(&scene);
    scene_config(&scene, LINE "--rdzv-conf=dialect=2.x|--no-python|/bin/sh", "");
    vars = mu_run_environment(scene.config, &worker, false);
    assert_null(mu_run_variable(vars, "NCCL_ASYNC_ERROR_HANDLING"));
    assert_string_equal(mu_run_variable(vars, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "1");
    scene.config->command.old_torch = true;
    free(vars);
    vars = mu_run_environment(scene.config, &worker, false);
    assert_string_equal(mu_run_variable(vars, "NCCL_ASYNC_ERROR_HANDLING"), "1");
    free(vars);
    scene_done(&scene);
}

static void what_the_launcher_has_is_kept_or_replaced(void **state)
{
    struct scene scene;
    char **vars;

    (void)state;
    scene_config(&scene, LINE "--no-python|/bin/sh",
                 "RANK=9|A=1|RANK=10|WORLD_SIZE=|OMP_NUM_THREADS=4|TORCH_NCCL_ASYNC_ERROR_HANDLING=3|RANKS=5|"
                 "NCCL_ASYNC_ERROR_HANDLING=|CUDA_VISIBLE_DEVICES=6,7|TORCHELASTIC_ERROR_FILE=/launcher|"
                 "TORCHELASTIC_TIMER_FILE=/theirs|ODD|=odd|TORCHELASTIC_SIGNALS_TO_HANDLE=x");
    vars = mu_run_environment(scene.config, &worker, false);
    assert_int_equal(count_of(vars, "RANK"), 1);
    assert_string_equal(mu_run_variable(vars, "RANK"), "3");
    assert_int_equal(count_of(vars, "WORLD_SIZE"), 1);
    assert_string_equal(mu_run_variable(vars, "OMP_NUM_THREADS"), "4");
    assert_string_equal(mu_run_variable(vars, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
    assert_string_equal(mu_run_variable(vars, "NCCL_ASYNC_ERROR_HANDLING"), "");
    assert_string_equal(mu_run_variable(vars, "CUDA_VISIBLE_DEVICES"), "6,7");
    assert_string_equal(mu_run_variable(vars, "TORCHELASTIC_ERROR_FILE"), "/logs/error.json");
    assert_int_equal(count_of(vars, "TORCHELASTIC_ERROR_FILE"), 1);
    assert_string_equal(mu_run_variable(vars, "TORCHELASTIC_TIMER_FILE"), "/theirs");
    assert_string_equal(mu_run_variable(vars, "RANKS"), "5");
    assert_string_equal(mu_run_variable(vars, "TORCHELASTIC_SIGNALS_TO_HANDLE"), "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    assert_string_equal(mu_run_variable(vars, ""), "odd");
    free(vars);
    scene_done(&scene);
}

static void odd_workers_get_odd_values(void **state)
{
    struct mu_agent_worker odd = worker;
    struct scene scene;
    char **vars;

    (void)state;
    odd.use_agent_store = false;
    odd.error_file = "";
    odd.timer_file = "/tmp/fifo";
    scene_config(&scene, LINE "--no-python|/bin/sh", "TORCHELASTIC_TIMER_FILE=/theirs");
    vars = mu_run_environment(scene.config, &odd, false);
    assert_string_equal(mu_run_variable(vars, "TORCHELASTIC_USE_AGENT_STORE"), "False");
    assert_string_equal(mu_run_variable(vars, "TORCHELASTIC_ERROR_FILE"), "");
    assert_string_equal(mu_run_variable(vars, "TORCHELASTIC_TIMER_FILE"), "/tmp/fifo");
    assert_int_equal(count_of(vars, "TORCHELASTIC_TIMER_FILE"), 1);
    free(vars);
    scene_done(&scene);
}

static void one_worker_keeps_its_threads(void **state)
{
    struct scene scene;
    char **vars;

    (void)state;
    scene_config(&scene, "--no-python|/bin/sh", "");
    vars = mu_run_environment(scene.config, &worker, false);
    assert_null(mu_run_variable(vars, "OMP_NUM_THREADS"));
    assert_null(mu_run_variable(vars, "CUDA_VISIBLE_DEVICES"));
    assert_null(mu_run_variable(vars, "TORCHELASTIC_TIMER_FILE"));
    free(vars);
    scene_done(&scene);
}

static void virtual_ranks_see_one_device(void **state)
{
    struct scene scene;
    char **vars;

    (void)state;
    scene_config(&scene, "--virtual-local-rank|" LINE "--no-python|/bin/sh", "CUDA_VISIBLE_DEVICES=6, 7 ,8");
    vars = mu_run_environment(scene.config, &worker, false);
    assert_string_equal(mu_run_variable(vars, "LOCAL_RANK"), "0");
    assert_string_equal(mu_run_variable(vars, "RANK"), "3");
    assert_string_equal(mu_run_variable(vars, "CUDA_VISIBLE_DEVICES"), "7");
    assert_int_equal(count_of(vars, "CUDA_VISIBLE_DEVICES"), 1);
    free(vars);
    scene_done(&scene);
    scene_config(&scene, "--virtual-local-rank|" LINE "--no-python|/bin/sh", "");
    vars = mu_run_environment(scene.config, &worker, false);
    assert_string_equal(mu_run_variable(vars, "CUDA_VISIBLE_DEVICES"), "1");
    assert_null(mu_run_variable(vars, "HIP_VISIBLE_DEVICES"));
    free(vars);
    scene_done(&scene);
}

static void virtual_ranks_take_their_device_from_hip_s_list_first(void **state)
{
    static const struct {
        const char *variables, *cuda, *hip;
    } rows[] = {
        { "HIP_VISIBLE_DEVICES=2, 3", "3", "3" },
        { "HIP_VISIBLE_DEVICES=2,3|CUDA_VISIBLE_DEVICES=6,7", "3", "3" },
        { "HIP_VISIBLE_DEVICES=2,3|CUDA_VISIBLE_DEVICES=6", "3", "3" }, /* the other list may be too short */
        { "HIP_VISIBLE_DEVICES=|CUDA_VISIBLE_DEVICES=6,7", "7", "" },   /* an empty one is as good as none */
        { "HIP_VISIBLE_DEVICES=", "1", "" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene scene;
        char **vars;

        scene_config(&scene, "--virtual-local-rank|" LINE "--no-python|/bin/sh", rows[i].variables);
        vars = mu_run_environment(scene.config, &worker, false);
        assert_string_equal(mu_run_variable(vars, "CUDA_VISIBLE_DEVICES"), rows[i].cuda);
        assert_string_equal(mu_run_variable(vars, "HIP_VISIBLE_DEVICES"), rows[i].hip);
        assert_int_equal(count_of(vars, "HIP_VISIBLE_DEVICES"), 1);
        free(vars);
        scene_done(&scene);
    }
}

static void ordinary_ranks_see_hip_s_list_as_it_is(void **state)
{
    struct scene scene;
    char **vars;

    (void)state;
    scene_config(&scene, LINE "--no-python|/bin/sh", "HIP_VISIBLE_DEVICES=2,3");
    vars = mu_run_environment(scene.config, &worker, false);
    assert_string_equal(mu_run_variable(vars, "HIP_VISIBLE_DEVICES"), "2,3");
    assert_null(mu_run_variable(vars, "CUDA_VISIBLE_DEVICES"));
    free(vars);
    scene_done(&scene);
}

static void an_environment_of_a_megabyte_is_passed_on(void **state)
{
    enum { MANY = 10000, BYTES = 110 };
    static char text[MANY][BYTES], *vars[MANY + 1];
    struct mu_run_host host = { .program = "torchrun", .environ = vars, .root = "/nowhere" };
    struct mu_run_config *config = NULL;
    struct scene scene;
    char **given;
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < MANY; i++) {
        (void)snprintf(text[i], BYTES, "V%zu=%0*d", i, BYTES - 10, 0);
        vars[i] = text[i];
    }
    assert_int_equal(scene_parse(&scene, LINE "--no-python|/bin/sh", ""), 0);
    host.rng = &scene.rng;
    assert_int_equal(mu_run_config_new(&scene.options, &host, &config, &scene.problem), 0);
    given = mu_run_environment(config, &worker, false);
    for (char **var = given; *var != NULL; var++)
        count += (*var)[0] == 'V';
    assert_int_equal(count, MANY);
    free(given);
    mu_run_config_free(config);
}

static void missing_memory_gives_nothing(void **state)
{
    struct mu_run_command command;
    struct scene scene;

    (void)state;
    FOR_EACH_FAILURE (n) {
        int rc = init(&scene, &command, "--no-python|sh|a", "", false);
        char **argv = rc < 0 ? NULL : mu_run_command_argv(&command, 1);

        assert_int_equal(argv == NULL, fail_alloc_hit());
        free(argv);
        mu_run_command_done(&command);
    }
    scene_config(&scene, LINE "--no-python|/bin/sh", "A=1");
    FOR_EACH_FAILURE (n) {
        char **vars = mu_run_environment(scene.config, &worker, false);

        assert_int_equal(vars == NULL, fail_alloc_hit());
        free(vars);
    }
    scene_done(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_has_its_command),
        cmocka_unit_test(programs_that_cannot_be_run_are_named),
        cmocka_unit_test(run_path_hands_the_file_to_an_interpreter),
        cmocka_unit_test(the_older_command_gives_the_rank_as_an_argument),
        cmocka_unit_test(templates_are_those_of_python),
        cmocka_unit_test(the_program_is_no_template),
        cmocka_unit_test(ten_thousand_arguments_are_passed_on),
        cmocka_unit_test(a_worker_gets_every_variable),
        cmocka_unit_test(only_an_old_pytorch_gets_the_old_name_of_its_variable),
        cmocka_unit_test(what_the_launcher_has_is_kept_or_replaced),
        cmocka_unit_test(odd_workers_get_odd_values),
        cmocka_unit_test(one_worker_keeps_its_threads),
        cmocka_unit_test(virtual_ranks_see_one_device),
        cmocka_unit_test(virtual_ranks_take_their_device_from_hip_s_list_first),
        cmocka_unit_test(ordinary_ranks_see_hip_s_list_as_it_is),
        cmocka_unit_test(an_environment_of_a_megabyte_is_passed_on),
        cmocka_unit_test(missing_memory_gives_nothing),
    };

    return cmocka_run_group_tests_name("command of muster run", tests, setup, teardown);
}
