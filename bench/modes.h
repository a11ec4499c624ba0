/* The five modes of the bench, and the figures they hand back. */
#ifndef MUSTER_BENCH_MODES_H
#define MUSTER_BENCH_MODES_H

#include <stdbool.h>
#include <stdint.h>

#include "load.h"

#define FIGURES_MAX 12u

/* One list serves the line for people and the line for programs. */
struct figure {
    const char *name; /* as it stands in the JSON */
    const char *unit;
    int decimals;
    double value; /* NAN: not known */
};

struct figures {
    uint32_t count;
    struct figure items[FIGURES_MAX];
};

struct mode_options {
    const struct load_config *config;
    uint32_t clients;
    long requests_max; /* mix: 0 for no limit but the time */
    int64_t warmup_ms, measure_ms;
    bool silent; /* idle: connections that never send a byte */
};

void figure_add(struct figures *out, const char *name, const char *unit, int decimals, double value);

/* Server CPU time, or NAN when the server's pid is not known; `count` divides it. */
double cpu_us(const struct load_config *config, int64_t cpu_ns, double count);

void mode_mix(const struct mode_options *options, struct figures *out);
void mode_barrier(const struct mode_options *options, struct figures *out);
void mode_waiters(const struct mode_options *options, struct figures *out);
void mode_gloo(const struct mode_options *options, struct figures *out);

/* Idle connections pile up over several sizes: the first call opens, the last one closes. */
struct idle;
struct idle *idle_new(const struct mode_options *options, uint32_t clients_max);
void idle_grow(struct idle *idle, uint32_t clients, struct figures *out);
void idle_free(struct idle *idle);

#endif
