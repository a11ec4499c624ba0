/* Addresses, networks and endpoints: what is read must mean something, and mean the same when it is written down. */
#include "store/net.h"

#include <stdio.h>
#include <stdlib.h>

enum { TEXT_MAX = 512 };

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static void check_endpoint(const char *text, uint16_t port_default)
{
    char host[MU_HOST_MAX], host_again[MU_HOST_MAX], written[MU_HOST_MAX + 16];
    struct muster_error err = { 0 };
    uint16_t port, port_again;

    if (mu_endpoint_parse(text, port_default, host, &port, &err) < 0) {
        EXPECT(err.code == MUSTER_EINVAL && err.text[0] != '\0');
        return;
    }
    EXPECT(port != 0 && host[0] != '\0' && strlen(host) < MU_HOST_MAX);
    if (strchr(host, ']') != NULL)
        return;
    (void)snprintf(written, sizeof written, "[%s]:%u", host, (unsigned)port);
    EXPECT(mu_endpoint_parse(written, 0, host_again, &port_again, &err) == 0);
    EXPECT(strcmp(host, host_again) == 0 && port == port_again);
}

static void check_address(const char *text, uint16_t port)
{
    char written[MU_ADDR_TEXT_MAX], written_again[MU_ADDR_TEXT_MAX], host[MU_HOST_MAX];
    union mu_addr addr, again;
    uint16_t port_again;

    if (!mu_addr_parse(text, port, &addr))
        return;
    EXPECT(mu_addr_port(&addr) == port);
    EXPECT(mu_addr_format(&addr, written) == written);
    EXPECT(mu_endpoint_parse(written, 0, host, &port_again, NULL) == 0);
    EXPECT(port_again == port);
    EXPECT(mu_addr_parse(host, port, &again));
    EXPECT(mu_addr_is_loopback(&addr) == mu_addr_is_loopback(&again));
    EXPECT(strcmp(mu_addr_format(&again, written_again), written) == 0);
}

static void check_network(const char *text)
{
    struct muster_error err = { 0 };
    struct mu_network network;
    union mu_addr addr = { .v6 = { .sin6_family = AF_INET6 } };

    if (mu_network_parse(text, &network, &err) < 0) {
        EXPECT(err.code == MUSTER_EINVAL && err.text[0] != '\0');
        return;
    }
    EXPECT(network.bits <= 128);
    memcpy(&addr.v6.sin6_addr, network.bytes, sizeof network.bytes);
    EXPECT(mu_network_has(&network, &addr)); /* its own first address */
    if (network.bits > 0) {                  /* and not one that differs in the last bit that counts */
        unsigned bit = network.bits - 1;

        addr.v6.sin6_addr.s6_addr[bit / 8] ^= (uint8_t)(0x80U >> bit % 8);
        EXPECT(!mu_network_has(&network, &addr));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_MAX];

    if (size > TEXT_MAX - 1)
        size = TEXT_MAX - 1;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    check_endpoint(text, 29500);
    check_endpoint(text, 0);
    check_address(text, 80);
    check_network(text);
    return 0;
}
