/* The board of those who wait: whatever others have put there, what is written back is bounded and has our line last,
 * and what is told of it has no control characters. */
#include "rdzv/notice_board.h"

#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char own[] = "job 2 2 node1 ";
    static struct mu_notice_board board;
    static struct mu_notice_board_text wanted;
    char note[MU_NOTICE_BOARD_NOTE_MAX];
    size_t lines = 0;

    mu_notice_board_begin(&board, "job", "node1", 2, 2, 0);
    mu_notice_board_post(&board, 1000, &wanted);
    (void)mu_notice_board_see(&board, mu_slice(NULL, 0), &wanted);
    (void)mu_notice_board_see(&board, mu_slice((const char *)data, size), &wanted);
    if (mu_notice_board_note(&board, note) != NULL)
        for (const char *c = note; *c != '\0'; c++)
            EXPECT((unsigned char)*c >= ' ' && *c != 0x7f);
    mu_notice_board_post(&board, 2000, &wanted);
    EXPECT(wanted.len <= MU_NOTICE_BOARD_BYTES_MAX && wanted.len > sizeof own && wanted.bytes[wanted.len - 1] == '\n');
    for (size_t i = 0; i < wanted.len; i++)
        lines += wanted.bytes[i] == '\n';
    EXPECT(lines <= MU_NOTICE_BOARD_LINES_MAX);
    EXPECT(mu_notice_board_end(&board, &wanted) && wanted.len <= MU_NOTICE_BOARD_BYTES_MAX);
    return 0;
}
