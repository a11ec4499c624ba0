/* Virtual time: a heap of what happens next. The trace is written only when a failed seed is run again; a run is a
 * function of its seed, so nothing is lost by that. */
#include "rdzv_sim.h"

#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

struct sim w;

static char **arguments;

const char *const fault_names[FAULTS_COUNT] = {
#define X(name, text) text,
    FAULTS(X)
#undef X
};

/* ---- The heap ---- */

static bool before(const struct event *a, const struct event *b)
{
    return a->at_us < b->at_us || (a->at_us == b->at_us && a->order < b->order);
}

void push(uint64_t at_us, enum event_type type, unsigned slot, uint64_t life, struct request *request)
{
    struct event event = { at_us, w.order++, type, slot, life, request };
    size_t i = w.heap_len++;

    if (w.heap_len > w.heap_room) {
        w.heap_room = w.heap_room * 2 + 256;
        w.heap = realloc(w.heap, w.heap_room * sizeof w.heap[0]);
        if (w.heap == NULL)
            abort();
    }
    while (i > 0 && before(&event, &w.heap[(i - 1) / 2])) {
        w.heap[i] = w.heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w.heap[i] = event;
}

bool pop(struct event *ret_event)
{
    struct event last;
    size_t i = 0, child;

    if (w.heap_len == 0)
        return false;
    *ret_event = w.heap[0];
    last = w.heap[--w.heap_len];
    while ((child = 2 * i + 1) < w.heap_len) {
        if (child + 1 < w.heap_len && before(&w.heap[child + 1], &w.heap[child]))
            child++;
        if (!before(&w.heap[child], &last))
            break;
        w.heap[i] = w.heap[child];
        i = child;
    }
    if (w.heap_len > 0)
        w.heap[i] = last;
    return true;
}

/* ---- Chance ---- */

uint64_t below(uint64_t bound)
{
    return mu_rng_below(&w.rng, bound);
}

bool chance(unsigned percent)
{
    return below(100) < percent;
}

bool fault(enum fault fault)
{
    return w.on[fault] && !w.calm && chance(w.percent[fault]);
}

/* ---- Telling ---- */

void tell(const char *format, ...)
{
    static char text[TRACE_TEXT];
    int len;
    va_list args;

    len = snprintf(text, sizeof text, "%10.4f  ", (double)w.now_us / 1e6);
    va_start(args, format);
    (void)vsnprintf(text + len, sizeof text - (size_t)len, format, args);
    va_end(args);
    if (!w.replaying) {
        puts(text);
        return;
    }
    if (w.trace == NULL && (w.trace = calloc(TRACE_LINES, sizeof w.trace[0])) == NULL)
        abort();
    memcpy(w.trace[w.trace_len++ % TRACE_LINES], text, sizeof text);
}

/* The command that runs this seed again: with the options that were given, but for those that chose the seed. */
static void print_command(void)
{
    printf("replay with: %s --seed 0x%" PRIx64, arguments[0], w.seed);
    for (char **at = arguments + 1; *at != NULL; at++) {
        if (strcmp(*at, "--seed") == 0 || strcmp(*at, "--seeds") == 0 || strcmp(*at, "--time") == 0) {
            at += at[1] != NULL;
            continue;
        }
        if (strcmp(*at, "--replay") != 0)
            printf(" %s", *at);
    }
    puts("");
}

static void print_trace(void)
{
    for (size_t i = w.trace_len < TRACE_LINES ? 0 : w.trace_len - TRACE_LINES; i < w.trace_len; i++)
        puts(w.trace[i % TRACE_LINES]);
}

/* Runs the program once more, for this seed alone and with a trace. Safe in a signal's handler. */
static void run_again(void)
{
    static char seed[32];
    static char *argv[32];
    unsigned len = 0;

    (void)snprintf(seed, sizeof seed, "0x%" PRIx64, w.seed);
    for (char **at = arguments; *at != NULL && len < 26; at++) {
        if (strcmp(*at, "--seed") == 0 || strcmp(*at, "--seeds") == 0 || strcmp(*at, "--time") == 0)
            at += at[1] != NULL;
        else
            argv[len++] = *at;
    }
    argv[len++] = (char *)"--seed";
    argv[len++] = seed;
    argv[len++] = (char *)"--replay";
    argv[len] = NULL;
    (void)execv("/proc/self/exe", argv);
    _exit(70);
}

_Noreturn void fail(const char *invariant, const char *format, ...)
{
    va_list args;

    (void)fflush(stdout);
    if (!w.replaying && !w.tracing)
        run_again();
    if (w.replaying)
        print_trace();
    printf("%10.4f  BROKEN %s: ", (double)w.now_us / 1e6, invariant);
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    puts("");
    print_command();
    (void)fflush(stdout);
    _exit(1);
}

static void on_crash(int signum)
{
    sigset_t set;

    (void)signal(signum, SIG_DFL);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, signum);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
    if (!w.replaying && !w.tracing)
        run_again();
    if (w.replaying)
        print_trace(); /* not safe here, and still better than nothing */
    printf("%10.4f  CRASHED with signal %d\n", (double)w.now_us / 1e6, signum);
    print_command();
    (void)fflush(stdout);
    _exit(1);
}

static void on_sanitizer(void)
{
    print_command();
    (void)fflush(stdout);
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak)); /* NOLINT: the sanitizers' name */

void replay_setup(char **argv)
{
    arguments = argv;
    (void)signal(SIGABRT, on_crash);
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(on_sanitizer);
    else
        (void)signal(SIGSEGV, on_crash);
}
