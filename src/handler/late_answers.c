/* Answers that have to wait until a step is over. See the diagram in late_answers.h. */
#include "handler/late_answers.h"

#include <assert.h>
#include <string.h>

static void become(struct mu_late_answers *late, enum mu_late_state state)
{
    static const unsigned follows[] = {
#define TO(name) (1u << MU_LATE_##name)
        [MU_LATE_IDLE] = TO(STEPPING),
        [MU_LATE_STEPPING] = TO(ANSWERING),
        [MU_LATE_ANSWERING] = TO(STEPPING_AGAIN) | TO(IDLE),
        [MU_LATE_STEPPING_AGAIN] = TO(ANSWERING),
#undef TO
    };

    assert(follows[late->state] & 1u << state);
    late->state = state;
    assert(late->count <= MU_LATE_ANSWERS_MAX);
    assert(state != MU_LATE_IDLE || late->count == 0);
}

void mu_late_begin(struct mu_late_answers *late)
{
    become(late, late->state == MU_LATE_ANSWERING ? MU_LATE_STEPPING_AGAIN : MU_LATE_STEPPING);
}

void mu_late_add(struct mu_late_answers *late, uint64_t id)
{
    assert(late->state == MU_LATE_STEPPING || late->state == MU_LATE_STEPPING_AGAIN);
    assert(id != 0 && late->count < MU_LATE_ANSWERS_MAX);
    late->ids[late->count++] = id;
}

bool mu_late_end(struct mu_late_answers *late)
{
    bool outer = late->state == MU_LATE_STEPPING;

    become(late, MU_LATE_ANSWERING);
    return outer;
}

bool mu_late_next(struct mu_late_answers *late, uint64_t *ret_id)
{
    assert(late->state == MU_LATE_ANSWERING);
    if (late->count == 0) {
        become(late, MU_LATE_IDLE);
        return false;
    }
    *ret_id = late->ids[0];
    late->count--;
    memmove(late->ids, late->ids + 1, late->count * sizeof late->ids[0]);
    return true;
}

void mu_late_drop(struct mu_late_answers *late)
{
    late->count = 0;
}
