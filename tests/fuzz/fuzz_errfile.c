/* Error files: what is read can be written, reads the same again, and makes a report. */
#include "agent/report.h"

#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void check_same_again(const struct mu_errfile *file)
{
    struct mu_buf once = { 0 }, twice = { 0 };
    struct mu_errfile again;

    EXPECT(mu_errfile_write(file, &once) == 0);
    if (once.len <= MU_ERRFILE_BYTES_MAX) {
        EXPECT(mu_errfile_parse(mu_buf_slice(&once), &again, NULL) == 0);
        EXPECT(again.structured == file->structured && again.timestamp_s == file->timestamp_s);
        EXPECT(strcmp(again.message, file->message) == 0 && strcmp(again.traceback, file->traceback) == 0);
        EXPECT(mu_errfile_write(&again, &twice) == 0);
        EXPECT(mu_slice_equal(mu_buf_slice(&once), mu_buf_slice(&twice)));
        mu_errfile_done(&again);
    }
    for (size_t i = 0; i < once.len; i++)
        EXPECT(once.data[i] >= ' ' && once.data[i] <= '~');
    mu_buf_done(&once);
    mu_buf_done(&twice);
}

static void check_report(const struct mu_errfile *file, struct mu_slice last_stderr)
{
    struct mu_failure failures[2] = {
        { .rank = 1,
          .local_rank = 1,
          .pid = 42,
          .exit_code = 3,
          .error_path = "/e",
          .error = file,
          .last_stderr = last_stderr },
        { .pid = 43, .exit_code = -15, .last_stderr = last_stderr },
    };
    struct mu_report report = { .job = "x", .host = "h", .failures = failures, .count = 2 };
    struct mu_buf text = { 0 };

    EXPECT(mu_failure_write_line(&failures[0], "h", &text) == 0);
    EXPECT(text.len < 4 * MU_REPORT_DETAIL_MAX + 100 && memchr(text.data, '\n', text.len) == NULL);
    EXPECT(mu_report_write_box(&report, &text) == 0);
    text.len = 0;
    EXPECT(mu_failure_write_raw(&failures[0], true, &text) == 0);
    mu_buf_done(&text);
}

static void check_copy(const struct mu_errfile *file)
{
    struct mu_buf copy = { 0 };

    EXPECT(mu_errfile_write_copy(file, -11, &copy) == 0);
    mu_buf_done(&copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct muster_error err = { 0 };
    struct mu_errfile file;
    int rc = mu_errfile_parse(mu_slice(data, size), &file, &err);

    if (rc < 0) {
        EXPECT((rc == MUSTER_EINVAL || rc == MUSTER_ELIMIT) && err.code == rc && err.text[0] != '\0');
        EXPECT(!file.present && file.message == NULL && file.root == NULL);
        check_report(NULL, mu_slice(data, size));
        return 0;
    }
    check_same_again(&file);
    check_copy(&file);
    check_report(&file, mu_slice("", 0));
    mu_errfile_done(&file);
    return 0;
}
