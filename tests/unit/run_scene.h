/* Command lines and environments as one text each, for the tests of `muster run`. */
#ifndef TESTS_UNIT_RUN_SCENE_H
#define TESTS_UNIT_RUN_SCENE_H

#include "cli/run_config.h"
#include "failmalloc.h"
#include "pure.h"

#include <stdio.h>

enum { SCENE_WORDS_MAX = 64, SCENE_BYTES_MAX = 4096 };

/* Words, or variables, with one '|' between them; an empty text is none at all. */
struct words {
    char text[SCENE_BYTES_MAX];
    char *items[SCENE_WORDS_MAX + 1];
};

static inline void split_words(struct words *words, const char *text)
{
    size_t count = 0;
    char *at = words->text, *bar;

    assert_true(strlen(text) < sizeof words->text);
    (void)strcpy(words->text, text);
    words->items[0] = NULL;
    if (text[0] == '\0')
        return;
    for (;;) {
        assert_true(count < SCENE_WORDS_MAX);
        words->items[count++] = at;
        bar = strchr(at, '|');
        if (bar == NULL)
            break;
        *bar = '\0';
        at = bar + 1;
    }
    words->items[count] = NULL;
}

/* The result of one command line. The words that it borrows live in it. */
struct scene {
    struct words argv, environ;
    struct mu_run_options options;
    struct mu_run_problem problem;
    struct mu_run_config *config;
    struct mu_rng rng;
};

static inline int scene_parse(struct scene *scene, const char *argv, const char *variables)
{
    memset(scene, 0, sizeof *scene);
    split_words(&scene->argv, argv);
    split_words(&scene->environ, variables);
    return mu_run_options_parse(scene->argv.items, false, scene->environ.items, &scene->options, &scene->problem);
}

/* Of what was parsed; `root` is a tree that stands for the machine, "/nowhere" for one without anything. */
static inline int scene_configure_on(struct scene *scene, const char *root)
{
    const struct mu_run_host host = {
        .program = "torchrun", .environ = scene->environ.items, .root = root, .rng = &scene->rng
    };

    scene->rng = mu_rng_seeded(7);
    return mu_run_config_new(&scene->options, &host, &scene->config, &scene->problem);
}

static inline void scene_done(struct scene *scene)
{
    mu_run_config_free(scene->config);
    scene->config = NULL;
}

/* A configuration that must come about. */
static inline struct mu_run_config *scene_config(struct scene *scene, const char *argv, const char *variables)
{
    if (scene_parse(scene, argv, variables) < 0 || scene_configure_on(scene, "/nowhere") < 0)
        fail_msg("'%s' with '%s': %s: %s", argv, variables, mu_run_kind_name(scene->problem.kind),
                 scene->problem.error.text);
    return scene->config;
}

#endif
