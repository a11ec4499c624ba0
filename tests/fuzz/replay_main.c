/*
 * Runs a fuzz target over stored inputs, without libFuzzer: each argument is a file or a directory of files.
 * Prints TAP, a line an argument. An input that the target cannot stand ends the program, as under libFuzzer;
 * its name is printed first, so the last line before the crash tells which.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_BYTES_MAX (64L << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Returns the number of inputs run: 1, or -1 with the reason printed. */
static long replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    struct stat st;
    long ran = -1;

    if (file == NULL || fstat(fileno(file), &st) != 0) {
        printf("# %s: %s\n", path, strerror(errno));
        goto out;
    }
    if (st.st_size > INPUT_BYTES_MAX) {
        printf("# %s: larger than %ld bytes\n", path, INPUT_BYTES_MAX);
        goto out;
    }
    /* Exactly as large as the input, so that ASan sees one byte too far. */
    data = malloc(st.st_size > 0 ? (size_t)st.st_size : 1);
    if (data == NULL || fread(data, 1, (size_t)st.st_size, file) != (size_t)st.st_size) {
        printf("# %s: could not be read\n", path);
        goto out;
    }
    printf("# %s\n", path);
    (void)fflush(stdout);
    (void)LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
    ran = 1;
out:
    free(data);
    if (file != NULL)
        (void)fclose(file);
    return ran;
}

/* Returns the number of inputs run, or -1 with the reason printed. Subdirectories are left out. */
static long replay_directory(const char *path)
{
    struct dirent **entries = NULL;
    long ran = 0;
    int count = scandir(path, &entries, NULL, alphasort);

    if (count < 0) {
        printf("# %s: %s\n", path, strerror(errno));
        return -1;
    }
    for (int i = 0; i < count; i++) {
        char name[4096];
        struct stat st;
        int len = snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name);

        free(entries[i]);
        if (ran < 0 || len < 0 || (size_t)len >= sizeof(name) || stat(name, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        ran = replay_file(name) < 0 ? -1 : ran + 1;
    }
    free(entries);
    return ran;
}

int main(int argc, char **argv)
{
    int failed = 0;

    printf("1..%d\n", argc - 1);
    for (int i = 1; i < argc; i++) {
        struct stat st;
        long ran = stat(argv[i], &st) == 0 && !S_ISDIR(st.st_mode) ? replay_file(argv[i]) : replay_directory(argv[i]);

        if (ran <= 0) /* an empty corpus proves nothing */
            failed++;
        printf("%s %d - %ld inputs of %s\n", ran > 0 ? "ok" : "not ok", i, ran > 0 ? ran : 0, argv[i]);
    }
    return failed == 0 ? 0 : 1;
}
