/* A list of endpoints: either all of them are URLs that say what they said, or there is an error that names one. */
#include "base/slice.h"
#include "kv/endpoints.h"

#include <stdlib.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mu_endpoints endpoints, again;
    struct muster_error error = { 0 };
    char *text = malloc(size + 1);

    EXPECT(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    if (mu_endpoints_parse(text, "http", 2379, &endpoints, &error) < 0) {
        EXPECT(error.code == MUSTER_EINVAL || error.code == MUSTER_ELIMIT);
        free(text);
        return 0;
    }
    EXPECT(endpoints.count >= 1 && endpoints.count <= MU_ENDPOINTS_MAX);
    for (unsigned i = 0; i < endpoints.count; i++) {
        const char *host = strstr(endpoints.urls[i], "://");

        EXPECT(host != NULL && strpbrk(host + 3, "/@?# \t\r\n%\\") == NULL);
        EXPECT(mu_endpoints_parse(endpoints.urls[i], "https", 1, &again, &error) == 0);
        EXPECT(again.count == 1 && strcmp(again.urls[0], endpoints.urls[i]) == 0);
    }
    free(text);
    return 0;
}
