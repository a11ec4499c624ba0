/* What is offered where, for a program with a command that runs a script and one that has commands of its own. */
#include "cli/shell_completion.h"
#include "pure.h"

#include <stdio.h>

static bool flag_at(const void *table, size_t index, struct mu_flag *ret_flag)
{
    const struct mu_flag *flags = table;

    *ret_flag = flags[index];
    return flags[index].name != NULL;
}

static const struct mu_flag top[] = { { "help", 'h', false, NULL }, { NULL, 0, false, NULL } };
static const struct mu_flag run[] = {
    { "help", 'h', false, NULL },   { "no-python", 0, false, NULL },
    { "node-rank", 0, true, NULL }, { "method", 'm', true, "{spawn,fork,forkserver}" },
    { "log-dir", 0, true, "DIR" },  { "to", 0, true, "{null,file:}" },
    { NULL, 0, false, NULL },
};
static const struct mu_flag serve[] = { { "port", 0, true, NULL }, { NULL, 0, false, NULL } };
static const struct mu_flag get[] = { { "wait", 0, false, NULL }, { NULL, 0, false, NULL } };

static const struct mu_shell_completion_part parts[] = {
    { "", "", flag_at, top, false },           { "run", "", flag_at, run, true },
    { "store", "", flag_at, serve, false },    { "store", "get", flag_at, get, false },
    { "store", "set", flag_at, serve, false },
};

enum { WORDS_MAX = 16 };

/* `line` has its words between bars. */
static const char *offered(const char *line)
{
    static char result[1024];
    static char room[256];
    const char *words[WORDS_MAX + 1] = { NULL };
    struct mu_text text = { 0 };
    size_t count = 0;

    (void)snprintf(room, sizeof room, "%s", line);
    for (char *at = room; at != NULL && count < WORDS_MAX;) {
        words[count++] = at;
        at = strchr(at, '|');
        if (at != NULL)
            *at++ = '\0';
    }
    mu_shell_completion_offer(&text, parts, COUNT(parts), words);
    assert_false(text.failed);
    (void)snprintf(result, sizeof result, "%.*s", (int)text.buf.len, text.buf.len > 0 ? text.buf.data : "");
    for (char *c = result; *c != '\0'; c++)
        *c = *c == '\n' ? ' ' : *c;
    mu_text_done(&text);
    return result;
}

static void what_fits_is_offered(void **state)
{
    static const struct {
        const char *line, *offers;
    } rows[] = {
        { "muster", "" },
        { "muster|", "run store " },
        { "muster|s", "store " },
        { "muster|x", "" },
        { "muster|-", "--help " },
        { "muster|x|", "run store " }, /* not known: as if it were not there */
        { "/usr/bin/muster|r", "run " },
        { "muster|run|", ":files " },
        { "muster|run|--no", "--no-python --node-rank " },
        { "muster|run|--no_", "--no_python " },
        { "muster|run|--", "--help --no-python --node-rank --method --log-dir --to " },
        { "muster|run|-x", "" },
        { "muster|run|--method|", "spawn fork forkserver " },
        { "muster|run|--method|fork", "fork forkserver " },
        { "muster|run|--meth|s", "spawn " },
        { "muster|run|-m|s", "spawn " },
        { "muster|run|-mspawn|", ":files " },
        { "muster|run|--method=|", ":files " },
        { "muster|run|--method=f", "--method=fork --method=forkserver " },
        { "muster|run|--method=", "--method=spawn --method=fork --method=forkserver " },
        { "muster|run|--meth=s", "--meth=spawn " },
        { "muster|run|--nope=s", "" },
        { "muster|run|--no-python=s", "" },
        { "muster|run|--log-dir|", ":dirs " },
        { "muster|run|--log-dir=/t", ":dirs " },
        { "muster|run|--log_dir|/t", ":dirs " },
        { "muster|run|--to|", "null file: " },
        { "muster|run|--to=fi", "--to=file: " },
        { "muster|run|--to|file:", ":files " },
        { "muster|run|--to=file:/t", ":files " },
        { "muster|run|--node-rank|", "" }, /* a number: nothing can be offered */
        { "muster|run|--node-rank|1|--me", "--method " },
        { "muster|run|--no-python|--me", "--method " },
        { "muster|run|--no|--me", "--method " }, /* two begin like this: no value is expected */
        { "muster|run|train.py|", ":files " },
        { "muster|run|train.py|--me", ":files " }, /* its own */
        { "muster|run|--|--me", ":files " },
        { "torchrun|", ":files " },
        { "/opt/bin/torchrun|--me", "--method " },
        { "torchrun|store|", ":files " },
        { "muster|store|", "get set " },
        { "muster|store|--p", "--port " },
        { "muster|store|--port|29500|g", "get " },
        { "muster|store|get|", "" },
        { "muster|store|get|--", "--wait " },
        { "muster|store|get|key|--", "--wait " },
        { "muster|store|set|--", "--port " },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (strcmp(offered(rows[i].line), rows[i].offers) != 0)
            fail_msg("%s: '%s', not '%s'", rows[i].line, offered(rows[i].line), rows[i].offers);
    }
}

static void every_shell_has_its_script(void **state)
{
    static const char *const shells[] = { "bash", "zsh", "tcsh", "fish" };
    struct mu_text text = { 0 };

    (void)state;
    for (size_t i = 0; i < COUNT(shells); i++) {
        assert_non_null(strstr(MU_SHELL_COMPLETION_SHELLS, shells[i]));
        assert_true(mu_shell_completion_script(&text, shells[i], "torchrun", parts, COUNT(parts)));
        assert_int_equal(mu_buf_append(&text.buf, "", 1, SIZE_MAX), 0);
        assert_non_null(strstr(text.buf.data, "torchrun"));
        assert_null(strchr(text.buf.data, '~'));
        mu_text_done(&text);
    }
    assert_false(mu_shell_completion_script(&text, "csh", "torchrun", parts, COUNT(parts)));
    assert_false(mu_shell_completion_script(&text, "", "torchrun", parts, COUNT(parts)));
}

static void tcsh_has_a_rule_for_each_option_once(void **state)
{
    struct mu_text text = { 0 };

    (void)state;
    assert_true(mu_shell_completion_script(&text, "tcsh", "muster", parts, COUNT(parts)));
    assert_int_equal(mu_buf_append(&text.buf, "", 1, SIZE_MAX), 0);
    assert_string_equal(text.buf.data,
                        "# Completion of muster in tcsh.\n"
                        "complete muster \\\n"
                        "    'c/--method=/(spawn fork forkserver)/' 'n/--method/(spawn fork forkserver)/' "
                        "'n/-m/(spawn fork forkserver)/' \\\n"
                        "    'c/--log-dir=/d/' 'n/--log-dir/d/' \\\n"
                        "    'c/--to=/(null file:)/' 'n/--to/(null file:)/' \\\n"
                        "    'c/--/(help no-python node-rank method log-dir to port wait )/' \\\n"
                        "    'p/1/(run store )/' \\\n"
                        "    'n/store/(get set )/' \\\n"
                        "    'p/*/f/'\n");
    mu_text_done(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_is_offered),
        cmocka_unit_test(every_shell_has_its_script),
        cmocka_unit_test(tcsh_has_a_rule_for_each_option_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
