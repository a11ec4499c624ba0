/* What a job of the chaos tests does: counts, step by step, all workers together at their worker store, with a
 * checkpoint every few steps; and looks at every start whether it is alone in its place.
 *
 *     chaos_worker DIRECTORY NODE [stubborn] [hang]
 *
 * Files in DIRECTORY:
 *
 *     alive/NODE.PID.NS   locked by this worker, and by the helper it forks, as long as either lives; "GENERATION RANK
 *                         WORLD" in it. A generation is a worker store's address
 *     log                 a line for each thing that happened:
 *                             up NODE PID RANK WORLD GENERATION NONCE STEP
 *                             checkpoint STEP SUM GENERATION
 *                             finished NODE PID RANK STEP SUM
 *                             gave-up NODE PID RANK REASON            the store was lost, or the like
 *                             broken NODE PID RANK WHAT               a promise that is not kept
 *     checkpoint          "STEP SUM"
 *     finish              when it is there, rank 0 lets the job end
 *
 * The helper removes a file of /dev/shm once its worker is gone, as Python's resource tracker does: it ignores SIGTERM,
 * and if it is killed the file stays. stubborn: the worker ignores SIGTERM, too. hang: when the store is lost it waits
 * to be stopped, as one in a collective would, instead of ending with 3. */
#include <muster.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum {
    CALL_MS = 60000,
    STEP_US = 5000,
    STEP_NUMBERS = 12, /* added up in a step, divided among the workers */
    CHECKPOINT_STEPS = 5,
    FINISH = 1000000, /* what rank 0 adds to its arrival when it wants to end */
    TEXT_MAX = 512,
};

static const char *directory, *node;
static int64_t rank, world;
static char generation[TEXT_MAX];
static int log_fd;
static bool hangs;
static struct muster_store *store;
static struct muster_error error;

/* ---- Telling ---- */

/* One write, so that lines of many workers do not mix. */
static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void tell(const char *format, ...)
{
    char line[2 * TEXT_MAX];
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (len > (int)sizeof line - 2)
        len = (int)sizeof line - 2;
    line[len++] = '\n';
    if (write(log_fd, line, (size_t)len) != len)
        abort(); /* a full disk proves nothing */
}

static _Noreturn void give_up(const char *what)
{
    tell("gave-up %s %d %" PRId64 " %s: %s", node, (int)getpid(), rank, what, error.text);
    while (hangs)
        (void)pause();
    _exit(3); /* the store's thread may be anywhere */
}

static void broken(const char *what)
{
    tell("broken %s %d %" PRId64 " %s", node, (int)getpid(), rank, what);
}

/* `name` follows `before` in the directory. Until the next call but one. */
static const char *path_of(const char *before, const char *name)
{
    static char paths[2][2 * TEXT_MAX];
    static unsigned turn;
    char *path = paths[turn++ % 2];

    if (snprintf(path, sizeof paths[0], "%s/%s%s", directory, before, name) >= (int)sizeof paths[0])
        abort();
    return path;
}

static int64_t number_from(const char *name)
{
    const char *text = getenv(name);

    if (text == NULL) {
        (void)fprintf(stderr, "chaos_worker: there is no %s\n", name);
        exit(2);
    }
    return strtoll(text, NULL, 10);
}

/* ---- Being alone ---- */

static void publish(char *name, size_t room)
{
    struct timespec now;
    const char *hidden;
    int fd;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)snprintf(name, room, "%s.%d.%lld%09ld", node, (int)getpid(), (long long)now.tv_sec, now.tv_nsec);
    hidden = path_of("alive/.", name);
    fd = open(hidden, O_CREAT | O_RDWR | O_EXCL, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) < 0 || dprintf(fd, "%s %" PRId64 " %" PRId64 "\n", generation, rank, world) < 0 ||
        rename(hidden, path_of("alive/", name)) < 0) {
        perror(hidden);
        exit(2);
    }
}

/* Another worker's file: is somebody behind it who may not be there? */
static void judge(const char *name)
{
    char text[TEXT_MAX] = "", theirs[TEXT_MAX], what[3 * TEXT_MAX] = "";
    bool same_node = strncmp(name, node, strlen(node)) == 0 && name[strlen(node)] == '.';
    int64_t their_rank = -1;
    int fd = open(path_of("alive/", name), O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    if (flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK && read(fd, text, sizeof text - 1) > 0 &&
        sscanf(text, "%511s %" SCNd64, theirs, &their_rank) == 2) {
        if (same_node && strcmp(theirs, generation) != 0)
            (void)snprintf(what, sizeof what, "an older round's is still there: %s, rank %" PRId64 " of %s", name,
                           their_rank, theirs);
        else if (strcmp(theirs, generation) == 0 && their_rank == rank)
            (void)snprintf(what, sizeof what, "another has this rank: %s", name);
        if (what[0] != '\0')
            broken(what);
    }
    (void)close(fd);
}

/* Everybody shows itself before it looks, so of two that overlap one sees the other. */
static void check_alone(const char *own)
{
    DIR *dir = opendir(path_of("alive", ""));
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, own) != 0)
            judge(entry->d_name);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

/* ---- The helper ---- */

static void start_helper(const char *name)
{
    const char *base = strrchr(directory, '/');
    char path[2 * TEXT_MAX], byte;
    int ends[2], fd;

    (void)snprintf(path, sizeof path, "/dev/shm/%s.%s", base != NULL ? base + 1 : directory, name);
    (void)signal(SIGTERM, SIG_IGN); /* the helper's from its first moment */
    if (pipe2(ends, O_CLOEXEC) < 0)
        exit(2);
    if (fork() == 0) {
        ssize_t n;

        (void)close(ends[1]);
        do
            n = read(ends[0], &byte, 1);
        while (n > 0 || (n < 0 && errno == EINTR));
        (void)unlink(path);
        _exit(0);
    }
    (void)close(ends[0]); /* the other end lives as long as we do */
    fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)close(fd);
}

/* ---- The work ---- */

static void connect_store(void)
{
    struct muster_store_tcp_config config = { .size = sizeof config,
                                              .host = getenv("MASTER_ADDR"),
                                              .port = (uint16_t)number_from("MASTER_PORT"),
                                              .connect_timeout_ms = CALL_MS,
                                              .timeout_ms = CALL_MS };

    if (muster_store_tcp_new(&config, &store, &error) < 0)
        give_up("connect to the worker store");
}

static int64_t add(const char *key, int64_t step, int64_t delta)
{
    char name[64];
    int64_t value;

    (void)snprintf(name, sizeof name, "%s/%" PRId64, key, step);
    if (muster_store_add(store, muster_str(name), delta, MUSTER_TIMEOUT_DEFAULT, &value, &error) < 0)
        give_up("add");
    return value;
}

static void set(const char *key, const char *value)
{
    if (muster_store_set(store, muster_str(key), muster_str(value), MUSTER_TIMEOUT_DEFAULT, &error) < 0)
        give_up("set");
}

static void get(const char *key, char *value, size_t room)
{
    struct muster_bytes bytes = { 0 };

    if (muster_store_get(store, muster_str(key), MUSTER_TIMEOUT_DEFAULT, &bytes, &error) < 0)
        give_up("get");
    (void)snprintf(value, room, "%.*s", (int)bytes.len, (const char *)bytes.data);
    muster_bytes_done(&bytes);
}

/* Where rank 0 found the job; the same for all. The nonce tells one world from another. */
static void begin(int64_t *step, int64_t *sum, char nonce[static TEXT_MAX])
{
    char text[TEXT_MAX];

    if (rank == 0) {
        FILE *file = fopen(path_of("checkpoint", ""), "re");

        *step = *sum = 0;
        if (file != NULL) {
            if (fscanf(file, "%" SCNd64 " %" SCNd64, step, sum) != 2)
                broken("half a checkpoint");
            (void)fclose(file);
        }
        (void)snprintf(text, sizeof text, "%" PRId64 " %" PRId64 " %d.%ld", *step, *sum, (int)getpid(),
                       (long)time(NULL));
        set("begin", text);
    }
    get("begin", text, sizeof text);
    if (sscanf(text, "%" SCNd64 " %" SCNd64 " %511s", step, sum, nonce) != 3)
        broken("rank 0's first word is unreadable");
}

static void write_checkpoint(int64_t step, int64_t sum)
{
    const char *fresh = path_of("checkpoint", ".new");
    FILE *file = fopen(fresh, "we");

    if (file == NULL || fprintf(file, "%" PRId64 " %" PRId64 "\n", step, sum) < 0 || fclose(file) != 0 ||
        rename(fresh, path_of("checkpoint", "")) < 0)
        abort();
    tell("checkpoint %" PRId64 " %" PRId64 " %s", step, sum, generation);
}

/* All workers together; true: that was the last one. */
static bool work(int64_t step, int64_t *sum)
{
    int64_t share = 0, first = STEP_NUMBERS * (step - 1) + 1, total, arrived;
    char key[64], word[16];
    bool wants_end = rank == 0 && access(path_of("finish", ""), F_OK) == 0;

    for (int64_t number = first + rank; number < first + STEP_NUMBERS; number += world)
        share += number;
    (void)add("sum", step, share);
    arrived = add("arrived", step, wants_end ? 1 + FINISH : 1);
    (void)snprintf(key, sizeof key, "complete/%" PRId64, step);
    if (arrived % FINISH == world)
        set(key, arrived >= FINISH ? "end" : "go");
    get(key, word, sizeof word);
    total = add("sum", step, 0);
    if (total != STEP_NUMBERS * first + STEP_NUMBERS * (STEP_NUMBERS - 1) / 2)
        broken("a step's sum is wrong: not everybody, or somebody twice");
    *sum += total;
    return strcmp(word, "end") == 0;
}

int main(int argc, char **argv)
{
    char name[TEXT_MAX], nonce[TEXT_MAX] = "";
    bool stubborn = false, last = false;
    int64_t step, sum;

    for (int i = 3; i < argc; i++) {
        stubborn |= strcmp(argv[i], "stubborn") == 0;
        hangs |= strcmp(argv[i], "hang") == 0;
    }
    if (argc < 3) {
        (void)fprintf(stderr, "usage: chaos_worker DIRECTORY NODE [stubborn] [hang]\n");
        return 2;
    }
    directory = argv[1];
    node = argv[2];
    rank = number_from("RANK");
    world = number_from("WORLD_SIZE");
    (void)snprintf(generation, sizeof generation, "%s:%" PRId64, getenv("MASTER_ADDR"), number_from("MASTER_PORT"));
    log_fd = open(path_of("log", ""), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (log_fd < 0)
        return 2;
    publish(name, sizeof name);
    check_alone(name);
    start_helper(name);
    if (!stubborn)
        (void)signal(SIGTERM, SIG_DFL);
    connect_store();
    begin(&step, &sum, nonce);
    tell("up %s %d %" PRId64 " %" PRId64 " %s %s %" PRId64, node, (int)getpid(), rank, world, generation, nonce, step);
    while (!last) {
        (void)usleep(STEP_US);
        last = work(++step, &sum);
        if (rank == 0 && (last || step % CHECKPOINT_STEPS == 0))
            write_checkpoint(step, sum);
    }
    tell("finished %s %d %" PRId64 " %" PRId64 " %" PRId64, node, (int)getpid(), rank, step, sum);
    muster_store_free(store);
    return 0;
}
