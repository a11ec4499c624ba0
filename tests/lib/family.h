/* Real processes in tests: finding all that come from one, by a mark in their environment, and talking to them. */
#ifndef TESTS_LIB_FAMILY_H
#define TESTS_LIB_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* "MUSTER_TEST_MARK=<this process, this moment>": put it into an environment, and whoever inherits that is found. */
const char *family_mark(char *room, size_t size);
size_t family_count(const char *mark);                            /* who is alive, zombies not */
bool family_wait(const char *mark, size_t count, int timeout_ms); /* until there are so many; false: it took too long */
void family_end(const char *mark); /* SIGKILL for whoever is left, after a test that failed */

bool family_until(bool (*holds)(void *arg), void *arg, int timeout_ms); /* looks again and again, in short pauses */

/* A line from a descriptor, without its end; false: none within so long. */
bool family_read_line(int fd, char *line, size_t size, int timeout_ms);

#endif
