/* A note in the ELF file that says which library may be loaded at run time, and what for: packagers and image builders
 * read it (the specification is uapi-group.org's "ELF dlopen metadata"). One for each library, at file scope. */
#ifndef MU_BASE_DLNOTE_H
#define MU_BASE_DLNOTE_H

#include <stdint.h>

#define MU_DLOPEN_NOTE(name, feature, description, soname)                                                             \
    static const struct {                                                                                              \
        uint32_t owner_len, text_len, type;                                                                            \
        char owner[4];                                                                                                 \
        _Alignas(uint32_t) char text[sizeof(MU_DLOPEN_TEXT(feature, description, soname))];                            \
    } name __attribute__((used, section(".note.dlopen"), aligned(4))) = {                                              \
        .owner_len = sizeof "FDO",                                                                                     \
        .text_len = sizeof(MU_DLOPEN_TEXT(feature, description, soname)),                                              \
        .type = 0x407c0c0a,                                                                                            \
        .owner = "FDO",                                                                                                \
        .text = MU_DLOPEN_TEXT(feature, description, soname),                                                          \
    }
#define MU_DLOPEN_TEXT(feature, description, soname)                                                                   \
    "[{\"feature\":\"" feature "\",\"description\":\"" description                                                     \
    "\",\"priority\":\"suggested\",\"soname\":[\"" soname "\"]}]"

#endif
