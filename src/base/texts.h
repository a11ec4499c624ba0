/* Texts of enums whose values stand in a list: #define LIST(X) X(NAME, "text") ... */
#ifndef MU_BASE_TEXTS_H
#define MU_BASE_TEXTS_H

#include <stddef.h>

#define MU_TEXT_OF(name, text) text,

/* Defines `const char *function(type value)`. The list must have all values of the enum, from 0 on, in order. */
#define MU_DEFINE_TEXTS(function, type, LIST)                                                                          \
    const char *function(type value)                                                                                   \
    {                                                                                                                  \
        static const char *const texts[] = { LIST(MU_TEXT_OF) };                                                       \
                                                                                                                       \
        return (size_t)value < sizeof texts / sizeof texts[0] ? texts[value] : "unknown";                              \
    }

#endif
