/* SPDX-License-Identifier: Apache-2.0 */
#include "fence/rehearsal.h"

#include "base/fd.h"
#include "fence/holders.h"

static void on_rehearsed(void *context, const struct gms_holder *list, size_t count)
{
    for (size_t i = 0; i < count; i++) { /* nobody has what is not there; but it may not have seen everybody */
        int pidfd = list[i].pidfd;
        gms_fd_close(&pidfd);
    }
    gms_rehearsal_end(context);
}

gms_status gms_rehearsal_start(struct gms_rehearsal *rehearsal, struct event_base *base, struct gms_error *ret_error)
{
    static const struct gms_inode nothing = {0};
    const struct gms_holders_options options = {
        .base = base, .own = &nothing, .own_count = 1, .threads = 1, .done = on_rehearsed, .context = rehearsal};
    return rehearsal->walk != NULL ? GMS_OK : gms_holders_start(&options, &rehearsal->walk, ret_error);
}

void gms_rehearsal_stop(struct gms_rehearsal *rehearsal)
{
    if (rehearsal->walk != NULL)
        gms_holders_stop(rehearsal->walk);
}

void gms_rehearsal_end(struct gms_rehearsal *rehearsal)
{
    gms_holders_abandon(rehearsal->walk);
    rehearsal->walk = NULL;
}
