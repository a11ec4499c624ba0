/* The version, from the build. */
#include "muster.h"

const char *muster_version(void)
{
    return MUSTER_VERSION;
}
