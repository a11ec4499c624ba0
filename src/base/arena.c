/* Memory that dies whole: blocks in a chain, the newest in front; a large piece gets a block of its own. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>

enum { BLOCK_BYTES = 4096 };

struct mu_arena_block {
    struct mu_arena_block *next;
    size_t used, size;
    alignas(max_align_t) char data[];
};

static struct mu_arena_block *add_block(struct mu_arena *arena, size_t size)
{
    size_t room = size > BLOCK_BYTES ? size : BLOCK_BYTES;
    struct mu_arena_block *block;

    if (room > SIZE_MAX - sizeof *block)
        return NULL;
    block = malloc(sizeof *block + room);
    if (block == NULL)
        return NULL;
    *block = (struct mu_arena_block){ .next = arena->blocks, .size = room };
    arena->blocks = block;
    return block;
}

void *mu_arena_alloc(struct mu_arena *arena, size_t size)
{
    const size_t align = alignof(max_align_t);
    struct mu_arena_block *block = arena->blocks;
    void *piece;

    if (size > SIZE_MAX - align)
        return NULL;
    size = (size + align - 1) / align * align;
    if (arena->bytes_max != 0 && (size > arena->bytes_max || arena->bytes > arena->bytes_max - size))
        return NULL;
    if (block == NULL || block->size - block->used < size)
        block = add_block(arena, size);
    if (block == NULL)
        return NULL;
    piece = block->data + block->used;
    block->used += size;
    arena->bytes += size;
    return piece;
}

struct mu_slice mu_arena_join(struct mu_arena *arena, struct mu_slice a, struct mu_slice b)
{
    char *text;

    if (a.len > SIZE_MAX - b.len)
        return mu_slice(NULL, 0);
    text = mu_arena_alloc(arena, a.len + b.len + 1);
    if (text == NULL)
        return mu_slice(NULL, 0);
    if (a.len > 0)
        memcpy(text, a.data, a.len);
    if (b.len > 0)
        memcpy(text + a.len, b.data, b.len);
    text[a.len + b.len] = '\0';
    return mu_slice(text, a.len + b.len);
}

const char *mu_arena_text(struct mu_arena *arena, const char *text, bool *full)
{
    const char *copy = text != NULL ? mu_arena_join(arena, mu_slice_str(text), mu_slice("", 0)).data : NULL;

    *full |= text != NULL && copy == NULL;
    return copy;
}

void mu_arena_done(struct mu_arena *arena)
{
    while (arena->blocks != NULL) {
        struct mu_arena_block *block = arena->blocks;

        arena->blocks = block->next;
        free(block);
    }
    arena->bytes = 0;
}
