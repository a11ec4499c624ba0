/* Endpoints of a rendezvous: what is read is a host and a port, and reads the same when it is written down again. */
#include "handler/handler.h"

#include <stdio.h>
#include <stdlib.h>

enum { TEXT_MAX = 8192 };

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void check(const char *text, int port_default)
{
    static char host[MU_RDZV_HOST_MAX], again[MU_RDZV_HOST_MAX], written[MU_RDZV_HOST_MAX + 16];
    struct muster_error err = { 0 };
    int port, port_again, rc = mu_rdzv_endpoint_parse(text, port_default, host, &port, &err);

    if (rc < 0) {
        EXPECT((rc == MUSTER_EINVAL || rc == MUSTER_ELIMIT) && err.code == rc && err.text[0] != '\0');
        return;
    }
    EXPECT(host[0] != '\0' && strlen(host) < MU_RDZV_HOST_MAX && strpbrk(host, "[]/ \t\r\n") == NULL);
    EXPECT((port >= 0 && port <= 65535) || port == port_default);
    if (port < 0 || strlen(host) > MU_RDZV_HOST_MAX - 16)
        return;
    (void)snprintf(written, sizeof written, " [%s]:%d\n", host, port);
    EXPECT(mu_rdzv_endpoint_parse(written, -1, again, &port_again, NULL) == 0);
    EXPECT(strcmp(host, again) == 0 && port == port_again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[TEXT_MAX];

    if (size > TEXT_MAX - 1)
        size = TEXT_MAX - 1;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    check(text, 29400);
    check(text, -1);
    return 0;
}
