/* The command line of `muster run`: every option and spelling, and what argparse makes of odd words. What is expected
 * here was seen on PyTorch 2.13 with Python 3.11, if nothing else is said. */
#include "run_scene.h"

/* ---- Words ---- */

static const struct {
    const char *argv;
    const char *script;
    const char *args; /* joined by '|' */
} good_words[] = {
    { "s", "s", "" },
    { "s|a|-b|--nnodes|9", "s", "a|-b|--nnodes|9" },
    { "s|--help", "s", "--help" },
    { "s|--no", "s", "--no" }, /* 3.11 calls it ambiguous, although it is the script's */
    { "--|s|a|--|b", "s", "a|--|b" },
    { "s|a|--|b", "s", "a|--|b" },
    { "--|s|--|a", "s", "--|a" },
    { "s|--|a", "s", "a" },
    { "s|--|--|a", "s", "--|a" },
    { "s|--", "s", "" },
    { "--|--|s", "--", "s" },
    { "--nnodes=1|--|s|--nope", "s", "--nope" },
    { "--|-r3", "-r3", "" },
    { "-", "-", "" },
    { "-1|a", "-1", "a" },
    { "-.5", "-.5", "" },
    { "-1.5", "-1.5", "" },
    { "-a b|c", "-a b", "c" },
    { "--x y|c", "--x y", "c" },
    { "|a", "", "a" },
};

static void the_first_word_that_is_no_option_is_the_script(void **state)
{
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(good_words); i++) {
        char args[SCENE_BYTES_MAX] = "";

        if (scene_parse(&scene, good_words[i].argv, "") < 0)
            fail_msg("'%s': %s", good_words[i].argv, scene.problem.error.text);
        for (char *const *arg = scene.options.args; *arg != NULL; arg++) {
            (void)strcat(args, arg == scene.options.args ? "" : "|");
            (void)strcat(args, *arg);
        }
        assert_string_equal(scene.options.script, good_words[i].script);
        assert_string_equal(args, good_words[i].args);
    }
}

static const struct {
    const char *argv;
    const char *error; /* all of it */
} bad_words[] = {
    { "", "the following arguments are required: training_script, training_script_args" },
    { "--", "the following arguments are required: training_script, training_script_args" },
    { "--nnodes=1", "the following arguments are required: training_script, training_script_args" },
    { "--nope", "the following arguments are required: training_script, training_script_args" },
    { "--nope|s", "unrecognized arguments: --nope" },
    { "--nope|--nope2=3|s|--nope3", "unrecognized arguments: --nope --nope2=3" },
    { "-x|s", "unrecognized arguments: -x" },
    { "-5x|s", "unrecognized arguments: -5x" },
    { "-nnodes|s", "unrecognized arguments: -nnodes" },
    { "--nproc_per-node=2|s", "unrecognized arguments: --nproc_per-node=2" },
    { "--use-env|s", "unrecognized arguments: --use-env" },
    { "--nope|--max-restarts=x|s", "argument --max-restarts/--max_restarts: invalid int value: 'x'" },
    { "--nnodes", "argument --nnodes: expected one argument" },
    { "--nnodes|--role|x|s", "argument --nnodes: expected one argument" },
    { "--nnodes|--|s", "argument --nnodes: expected one argument" },
    { "--max-restarts|-x|s", "argument --max-restarts/--max_restarts: expected one argument" },
    { "--max-restarts|- 1|s", "argument --max-restarts/--max_restarts: invalid int value: '- 1'" },
    { "--max-restarts=1.5|s", "argument --max-restarts/--max_restarts: invalid int value: '1.5'" },
    { "--max-restarts=|s", "argument --max-restarts/--max_restarts: invalid int value: ''" },
    { "--max-restarts=9223372036854775808|s",
      "argument --max-restarts/--max_restarts: invalid int value: '9223372036854775808'" }, /* stock has no limit */
    { "--node-rank=x|s", "argument --node-rank/--node_rank: invalid int value: 'x'" },
    { "--shutdown-timeout=x|s", "argument --shutdown-timeout/--shutdown_timeout: invalid int value: 'x'" },
    { "--monitor-interval=x|s", "argument --monitor-interval/--monitor_interval: invalid float value: 'x'" },
    { "--monitor-interval=0x10|s", "argument --monitor-interval/--monitor_interval: invalid float value: '0x10'" },
    { "--standalone=1|s", "argument --standalone: ignored explicit argument '1'" },
    { "--module=1|s", "argument -m/--module: ignored explicit argument '1'" },
    { "--no-python=|s", "argument --no-python/--no_python: ignored explicit argument ''" },
    { "-m=1|s", "argument -m/--module: ignored explicit argument '1'" },
    { "-mx|s", "argument -m/--module: ignored explicit argument 'x'" },
    { "-help|s", "argument -h/--help: ignored explicit argument 'elp'" },
    { "-r", "argument -r/--redirects: expected one argument" },
    { "-mr|-x|s", "argument -r/--redirects: expected one argument" },
    { "--start-method|foo|s",
      "argument --start-method/--start_method: invalid choice: 'foo' (choose from {spawn,fork,forkserver})" },
    { "--start-method=spaw|s",
      "argument --start-method/--start_method: invalid choice: 'spaw' (choose from {spawn,fork,forkserver})" },
    { "--start-method=|s",
      "argument --start-method/--start_method: invalid choice: '' (choose from {spawn,fork,forkserver})" },
    { "--numa-binding=foo|s", "argument --numa-binding/--numa_binding: invalid choice: 'foo' (choose from "
                              "{node,socket,exclusive,core-complex})" },
    { "--no|s", "ambiguous option: --no could match --no-python, --node-rank" },
    { "--rdzv-=1|s", "ambiguous option: --rdzv- could match --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf" },
    { "--master_=1|s", "ambiguous option: --master_ could match --master-addr, --master-port" },
};

static void what_argparse_refuses_is_refused_in_its_words(void **state)
{
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(bad_words); i++) {
        if (scene_parse(&scene, bad_words[i].argv, "") == 0)
            fail_msg("'%s' was taken", bad_words[i].argv);
        assert_int_equal(scene.problem.kind, MU_RUN_USAGE);
        assert_string_equal(scene.problem.error.text, bad_words[i].error);
    }
}

/* ---- Options ---- */

static const struct {
    const char *name; /* in the underscore form */
    const char *variable;
    char kind; /* s text, i integer, f float, b flag */
    size_t at;
    const char *fallback; /* NULL: not set */
} table[] = {
#define ROW(name, kind, fallback)                                                                                      \
    {                                                                                                                  \
#name, "PET_" #name, kind, offsetof(struct mu_run_options, name), fallback                                     \
    }
    ROW(nnodes, 's', "1:1"),
    ROW(nproc_per_node, 's', "1"),
    ROW(rdzv_backend, 's', "static"),
    ROW(rdzv_endpoint, 's', ""),
    ROW(rdzv_id, 's', NULL),
    ROW(rdzv_conf, 's', ""),
    ROW(standalone, 'b', NULL),
    ROW(max_restarts, 'i', "0"),
    ROW(monitor_interval, 'f', "0.1"),
    ROW(start_method, 's', "spawn"),
    ROW(event_log_handler, 's', "null"),
    ROW(metrics, 's', "null"),
    ROW(role, 's', "default"),
    ROW(module, 'b', NULL),
    ROW(no_python, 'b', NULL),
    ROW(run_path, 'b', NULL),
    ROW(log_dir, 's', NULL),
    ROW(log_line_prefix_template, 's', ""),
    ROW(redirects, 's', "0"),
    ROW(tee, 's', "0"),
    ROW(local_ranks_filter, 's', ""),
    ROW(duplicate_stdout_filters, 's', ""),
    ROW(duplicate_stderr_filters, 's', ""),
    ROW(node_rank, 'i', "0"),
    ROW(master_addr, 's', "127.0.0.1"),
    ROW(master_port, 'i', NULL),
    ROW(local_addr, 's', NULL),
    ROW(signals_to_handle, 's', "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
    ROW(shutdown_timeout, 'i', NULL),
    ROW(virtual_local_rank, 'b', NULL),
#undef ROW
};

/* The option's value as a text; NULL: not set. */
static const char *shown(const struct mu_run_options *options, size_t row, char room[static 64])
{
    const void *at = (const char *)options + table[row].at;
    const struct mu_run_int *integer = at;
    const struct mu_run_float *number = at;

    switch (table[row].kind) {
    case 's':
        return *(const char *const *)at;
    case 'b':
        return *(const bool *)at ? "on" : NULL;
    case 'i':
        (void)snprintf(room, 64, "%lld", (long long)integer->value);
        return integer->is_set ? room : NULL;
    default:
        (void)snprintf(room, 64, "%g", number->value);
        return number->is_set ? room : NULL;
    }
}

static void expect(const struct mu_run_options *options, size_t row, const char *value)
{
    char room[64];
    const char *there = shown(options, row, room);

    if ((there == NULL) != (value == NULL) || (value != NULL && strcmp(there, value) != 0))
        fail_msg("%s is '%s', not '%s'", table[row].name, there == NULL ? "(none)" : there,
                 value == NULL ? "(none)" : value);
}

static void without_options_there_are_stocks_defaults(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(scene_parse(&scene, "s", ""), 0);
    for (size_t i = 0; i < COUNT(table); i++)
        expect(&scene.options, i, table[i].fallback);
    assert_null(scene.options.logs_specs);
    assert_null(scene.options.numa_binding);
    assert_false(scene.options.quiet);
    assert_false(scene.options.dry_run);
    assert_int_equal(scene.options.verbose, 0);
    assert_int_equal(scene.options.backend_dirs_count, 0);
}

static const char *value_for(size_t row)
{
    switch (table[row].kind) {
    case 's':
        return strcmp(table[row].name, "start_method") == 0 ? "fork" : "some";
    case 'i':
        return "17";
    case 'f':
        return "2.5";
    default:
        return "on";
    }
}

/* --name=value, --name value, --flag; with '-' or '_'. */
static void write_option(char argv[static 256], size_t row, bool dashes, bool equals)
{
    char name[64];

    (void)strcpy(name, table[row].name);
    for (char *c = name; dashes && *c != '\0'; c++)
        *c = *c == '_' ? '-' : *c;
    if (table[row].kind == 'b')
        (void)snprintf(argv, 256, "--%s|s", name);
    else
        (void)snprintf(argv, 256, "--%s%c%s|s", name, equals ? '=' : '|', value_for(row));
}

static void every_option_has_two_spellings_and_two_forms(void **state)
{
    struct scene scene;
    char argv[256];

    (void)state;
    for (size_t i = 0; i < COUNT(table); i++) {
        for (unsigned form = 0; form < 4; form++) {
            write_option(argv, i, form & 1, form & 2);
            if (scene_parse(&scene, argv, "") < 0)
                fail_msg("'%s': %s", argv, scene.problem.error.text);
            assert_string_equal(scene.options.script, "s");
            for (size_t other = 0; other < COUNT(table); other++)
                expect(&scene.options, other, other == i ? value_for(i) : table[other].fallback);
        }
    }
}

static void variable_of(char text[static 256], size_t row, const char *value)
{
    (void)snprintf(text, 256, "%s=%s", table[row].variable, value);
    for (char *c = text; *c != '='; c++)
        *c = (char)(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
}

static void every_option_has_a_variable_below_it(void **state)
{
    struct scene scene;
    char argv[256], variables[256];

    (void)state;
    for (size_t i = 0; i < COUNT(table); i++) {
        bool flag = table[i].kind == 'b';

        variable_of(variables, i, flag ? "1" : value_for(i));
        assert_int_equal(scene_parse(&scene, "s", variables), 0);
        for (size_t other = 0; other < COUNT(table); other++)
            expect(&scene.options, other, other == i ? value_for(i) : table[other].fallback);
        variable_of(variables, i, table[i].kind == 's' ? "other" : "1");
        write_option(argv, i, true, true);
        assert_int_equal(scene_parse(&scene, argv, variables), 0);
        expect(&scene.options, i, value_for(i));
    }
}

static void some_options_have_no_variable(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(scene_parse(&scene, "s",
                                 "PET_LOGS_SPECS=x|PET_NUMA_BINDING=node|PET_DRY_RUN=1|PET_QUIET=1|PET_VERBOSE=1|"
                                 "PET_BACKEND_DIR=x|PET_HELP=1|PET_USE_ENV=1"),
                     0);
    assert_null(scene.options.logs_specs);
    assert_null(scene.options.numa_binding);
    assert_false(scene.options.dry_run || scene.options.quiet || scene.options.help || scene.options.use_env);
    assert_int_equal(scene.options.verbose, 0);
    assert_int_equal(scene.options.backend_dirs_count, 0);
}

static void variables_are_typed_but_not_chosen_from(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(scene_parse(&scene, "s", "PET_START_METHOD=foo"), 0);
    assert_string_equal(scene.options.start_method, "foo");
    assert_int_equal(scene_parse(&scene, "s", "PET_NPROC_PER_NODE="), 0);
    assert_string_equal(scene.options.nproc_per_node, "");
    assert_true(scene_parse(&scene, "s", "PET_MAX_RESTARTS=zz") < 0);
    assert_int_equal(scene.problem.kind, MU_RUN_USAGE);
    assert_string_equal(scene.problem.error.text, "argument --max-restarts/--max_restarts: invalid int value: 'zz'");
    assert_true(scene_parse(&scene, "", "PET_MAX_RESTARTS=zz") < 0); /* before the script is missed */
    assert_string_equal(scene.problem.error.text, "argument --max-restarts/--max_restarts: invalid int value: 'zz'");
    assert_true(scene_parse(&scene, "s", "PET_MASTER_PORT=") < 0);
    assert_int_equal(scene.problem.kind, MU_RUN_USAGE);
    assert_int_equal(scene_parse(&scene, "--max-restarts=1|s", "PET_MAX_RESTARTS=zz"), 0); /* not looked at */
}

static void flag_variables_are_integers_and_come_first(void **state)
{
    static const char *const bad[] = { "abc", "", "1.0", "true", "0x1" };
    struct scene scene;
    char variables[64];

    (void)state;
    assert_int_equal(scene_parse(&scene, "s", "PET_STANDALONE=0"), 0);
    assert_false(scene.options.standalone);
    assert_int_equal(scene_parse(&scene, "s", "PET_STANDALONE=-1"), 0);
    assert_true(scene.options.standalone);
    assert_int_equal(scene_parse(&scene, "s", "PET_STANDALONE= 2 "), 0);
    assert_true(scene.options.standalone);
    for (size_t i = 0; i < COUNT(bad); i++) {
        (void)snprintf(variables, sizeof variables, "PET_RUN_PATH=%s", bad[i]);
        assert_true(scene_parse(&scene, i % 2 == 0 ? "--help" : "", variables) < 0);
        assert_int_equal(scene.problem.kind, MU_RUN_VALUE);
        assert_non_null(strstr(scene.problem.error.text, "PET_RUN_PATH"));
    }
}

static void the_last_of_an_option_wins(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(scene_parse(&scene, "--nnodes=1|--nnodes|2|--nn=3|-r1|--redirects=2|-r|3|s|--nnodes=4", ""), 0);
    assert_string_equal(scene.options.nnodes, "3");
    assert_string_equal(scene.options.redirects, "3");
}

static void names_may_be_cut_short(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(scene_parse(&scene, "--nproc_per=2|--no_pyth|--redirect=3|--nn|4|--stan|--log-d=x|s", ""), 0);
    assert_string_equal(scene.options.nproc_per_node, "2");
    assert_true(scene.options.no_python);
    assert_string_equal(scene.options.redirects, "3");
    assert_string_equal(scene.options.nnodes, "4");
    assert_true(scene.options.standalone);
    assert_string_equal(scene.options.log_dir, "x");
    assert_int_equal(scene_parse(&scene, "--nproc=2|s", ""),
                     0); /* two spellings are one option, also for newer Pythons */
    assert_string_equal(scene.options.nproc_per_node, "2");
    assert_int_equal(scene_parse(&scene, "--rdzv_b=c10d|s", ""), 0);
    assert_string_equal(scene.options.rdzv_backend, "c10d");
}

static void options_of_ours_make_nothing_ambiguous_that_was_clear(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(scene_parse(&scene, "--v|--e=console|--ver|--ex=3|--q|--dr|--ba=x|s", ""), 0);
    assert_true(scene.options.virtual_local_rank);
    assert_string_equal(scene.options.event_log_handler, "console");
    assert_int_equal(scene.options.verbose, 1);
    assert_true(scene.options.exit_barrier_timeout.is_set);
    assert_true(scene.options.quiet && scene.options.dry_run);
    assert_string_equal(scene.options.backend_dirs[0], "x");
}

static void letters_may_stand_together(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(scene_parse(&scene, "-mr3|-t=1|-vv|-q|s", ""), 0);
    assert_true(scene.options.module && scene.options.quiet);
    assert_string_equal(scene.options.redirects, "3");
    assert_string_equal(scene.options.tee, "1");
    assert_int_equal(scene.options.verbose, 2);
    assert_int_equal(scene_parse(&scene, "-mt|2|s", ""), 0);
    assert_string_equal(scene.options.tee, "2");
}

static void numbers_are_those_of_python(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(scene_parse(&scene, "--max-restarts|-1|--node-rank= +1_0 |--monitor-interval=1e-3|s", ""), 0);
    assert_int_equal(scene.options.max_restarts.value, -1);
    assert_int_equal(scene.options.node_rank.value, 10);
    assert_true(scene.options.monitor_interval.value == 1e-3);
}

static void help_ends_the_parsing_where_it_stands(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(scene_parse(&scene, "--nope|--help|--max-restarts=x", ""), 0);
    assert_true(scene.options.help);
    assert_int_equal(scene_parse(&scene, "-mh", "PET_MAX_RESTARTS=zz"), 0);
    assert_true(scene.options.help);
    assert_true(scene_parse(&scene, "--max-restarts=x|--help", "") < 0);
}

static void back_end_directories_add_up_to_a_limit(void **state)
{
    char *argv[2 * MU_RUN_BACKEND_DIRS_MAX + 4];
    static char option[] = "--backend-dir", dir[] = "d", script[] = "s", *none[] = { NULL };
    struct mu_run_options options;
    struct mu_run_problem problem;
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < MU_RUN_BACKEND_DIRS_MAX; i++) {
        argv[count++] = option;
        argv[count++] = dir;
    }
    argv[count] = script;
    argv[count + 1] = NULL;
    assert_int_equal(mu_run_options_parse(argv, false, none, &options, &problem), 0);
    assert_int_equal(options.backend_dirs_count, MU_RUN_BACKEND_DIRS_MAX);
    assert_null(options.backend_dirs[MU_RUN_BACKEND_DIRS_MAX]);
    argv[count] = option;
    argv[count + 1] = dir;
    argv[count + 2] = script;
    argv[count + 3] = NULL;
    assert_true(mu_run_options_parse(argv, false, none, &options, &problem) < 0);
    assert_int_equal(problem.kind, MU_RUN_USAGE);
}

static void the_older_command_has_one_more_option(void **state)
{
    struct scene scene;

    (void)state;
    split_words(&scene.argv, "--use_env|s");
    split_words(&scene.environ, "");
    assert_int_equal(mu_run_options_parse(scene.argv.items, true, scene.environ.items, &scene.options, &scene.problem),
                     0);
    assert_true(scene.options.use_env);
}

/* ---- Large ---- */

static void ten_thousand_arguments_are_the_scripts(void **state)
{
    enum { MANY = 10000 };
    static char *argv[MANY + 3], first[] = "--nnodes=2", script[] = "s", word[] = "--nope", *none[] = { NULL };
    struct mu_run_options options;
    struct mu_run_problem problem;
    size_t count = 0;

    (void)state;
    argv[0] = first;
    argv[1] = script;
    for (size_t i = 0; i < MANY; i++)
        argv[i + 2] = word;
    assert_int_equal(mu_run_options_parse(argv, false, none, &options, &problem), 0);
    while (options.args[count] != NULL)
        count++;
    assert_int_equal(count, MANY);
    argv[1] = word; /* now all of them are options that nobody knows */
    assert_true(mu_run_options_parse(argv, false, none, &options, &problem) < 0);
    argv[MANY + 1] = script;
    assert_true(mu_run_options_parse(argv, false, none, &options, &problem) < 0);
    assert_int_equal(problem.kind, MU_RUN_USAGE);
    assert_memory_equal(problem.error.text, "unrecognized arguments: --nope --nope", 37);
}

static void words_of_any_length_are_cut_in_errors_only(void **state)
{
    enum { LONG = 1 << 20 };
    char *word = malloc(LONG + 1), script[] = "s", *argv[] = { word, script, NULL }, *none[] = { NULL };
    struct mu_run_options options;
    struct mu_run_problem problem;

    (void)state;
    memset(word, 'x', LONG);
    word[LONG] = '\0';
    memcpy(word, "--role=", 7);
    assert_int_equal(mu_run_options_parse(argv, false, none, &options, &problem), 0);
    assert_int_equal(strlen(options.role), LONG - 7);
    memcpy(word, "--tee:", 6);
    assert_true(mu_run_options_parse(argv, false, none, &options, &problem) < 0);
    memcpy(word, "--max-restarts=", 15);
    assert_true(mu_run_options_parse(argv, false, none, &options, &problem) < 0);
    memcpy(word, "--n=", 4);
    assert_true(mu_run_options_parse(argv, false, none, &options, &problem) < 0);
    free(word);
}

/* ---- Texts ---- */

static void check_text(const struct mu_text *text, size_t columns_max)
{
    size_t column = 0;

    assert_false(text->failed);
    for (size_t i = 0; i < text->buf.len; i++) {
        column = text->buf.data[i] == '\n' ? 0 : column + 1;
        if (column > columns_max)
            fail_msg("a line is longer than %zu columns: %.*s", columns_max, 80, text->buf.data + i + 1 - column);
    }
    assert_int_equal(column, 0);
}

static bool text_has(const struct mu_text *text, const char *part)
{
    return memmem(text->buf.data, text->buf.len, part, strlen(part)) != NULL;
}

static void usage_and_help_name_every_option(void **state)
{
    struct mu_text usage = { 0 }, help = { 0 };

    (void)state;
    mu_run_options_usage(&usage, "torchrun", false);
    mu_run_options_help(&help, "torchrun", false);
    check_text(&usage, 78);
    check_text(&help, 86);
    assert_true(text_has(&usage, "usage: torchrun [-h] [--nnodes NNODES] [--nproc-per-node NPROC_PER_NODE]\n"
                                 "                [--rdzv-backend RDZV_BACKEND]"));
    assert_true(text_has(&usage, "[--start-method {spawn,fork,forkserver}]"));
    assert_true(text_has(&usage, "\n                training_script ...\n"));
    for (size_t i = 0; i < COUNT(table); i++) {
        char name[64] = "--";

        (void)strcat(name, table[i].name);
        for (char *c = name; *c != '\0'; c++)
            *c = *c == '_' ? '-' : *c;
        if (!text_has(&help, name))
            fail_msg("%s is not in the help", name);
        if (strcmp(name, "--module") != 0 && strcmp(name, "--redirects") != 0 && strcmp(name, "--tee") != 0 &&
            !text_has(&usage, name))
            fail_msg("%s is not in the usage", name);
    }
    mu_text_done(&usage);
    mu_text_done(&help);
    mu_run_options_usage(&usage, "a-program-with-a-name-that-is-longer-than-anybody-would-want-it-to-be", true);
    assert_true(text_has(&usage, "[--use-env]"));
    mu_text_done(&usage);
}

static void missing_memory_is_said_by_the_text(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_text text = { 0 };

        mu_run_options_usage(&text, "torchrun", false);
        mu_run_options_help(&text, "torchrun", false);
        assert_int_equal(text.failed != 0, fail_alloc_hit());
        mu_text_done(&text);
    }
}

static void variables_are_found_by_their_whole_name(void **state)
{
    static char first[] = "AB=1", second[] = "A=2", third[] = "A=3", odd[] = "X",
                *vars[] = { first, second, third, odd, NULL };

    (void)state;
    assert_string_equal(mu_run_variable(vars, "A"), "2");
    assert_string_equal(mu_run_variable(vars, "AB"), "1");
    assert_null(mu_run_variable(vars, "X"));
    assert_null(mu_run_variable(vars, "ABC"));
}

static void kinds_have_the_names_of_python(void **state)
{
    (void)state;
    assert_string_equal(mu_run_kind_name(MU_RUN_VALUE), "ValueError");
    assert_string_equal(mu_run_kind_name(MU_RUN_RUNTIME), "RuntimeError");
    assert_string_equal(mu_run_kind_name(MU_RUN_ASSERTION), "AssertionError");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_word_that_is_no_option_is_the_script),
        cmocka_unit_test(what_argparse_refuses_is_refused_in_its_words),
        cmocka_unit_test(without_options_there_are_stocks_defaults),
        cmocka_unit_test(every_option_has_two_spellings_and_two_forms),
        cmocka_unit_test(every_option_has_a_variable_below_it),
        cmocka_unit_test(some_options_have_no_variable),
        cmocka_unit_test(variables_are_typed_but_not_chosen_from),
        cmocka_unit_test(flag_variables_are_integers_and_come_first),
        cmocka_unit_test(the_last_of_an_option_wins),
        cmocka_unit_test(names_may_be_cut_short),
        cmocka_unit_test(options_of_ours_make_nothing_ambiguous_that_was_clear),
        cmocka_unit_test(letters_may_stand_together),
        cmocka_unit_test(numbers_are_those_of_python),
        cmocka_unit_test(help_ends_the_parsing_where_it_stands),
        cmocka_unit_test(back_end_directories_add_up_to_a_limit),
        cmocka_unit_test(the_older_command_has_one_more_option),
        cmocka_unit_test(ten_thousand_arguments_are_the_scripts),
        cmocka_unit_test(words_of_any_length_are_cut_in_errors_only),
        cmocka_unit_test(usage_and_help_name_every_option),
        cmocka_unit_test(missing_memory_is_said_by_the_text),
        cmocka_unit_test(variables_are_found_by_their_whole_name),
        cmocka_unit_test(kinds_have_the_names_of_python),
    };

    return cmocka_run_group_tests_name("options of muster run", tests, NULL, NULL);
}
