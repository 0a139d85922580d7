/* SPDX-License-Identifier: Apache-2.0
 *
 * The pair of functions that torch.cuda.memory.CUDAPluggableAllocator wants: whole segments of PyTorch's caching
 * allocator as regions under a tag. Which tag is the calling thread's word (gms_torch_scope); freeing is done from any
 * thread at any time, so which region an address is has a table of its own.
 */
#include "libgms/session.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/cuda.h"

struct segment {
    struct segment *next;
    struct gms_session *session;
    void *address;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct segment *segments;
static _Thread_local struct {
    struct gms_session *session;
    char tag[GMS_NAME_BYTES];
} scope;

gms_status gms_torch_scope(gms_session *session, const char *tag, struct gms_error *ret_error)
{
    if (session == NULL || tag == NULL) {
        scope.session = NULL;
        return GMS_OK;
    }
    const size_t length = strnlen(tag, GMS_NAME_BYTES);
    if (length == 0 || length == GMS_NAME_BYTES)
        return gms_fail(ret_error, GMS_E_INVALID, "a tag's name has 1 to %d bytes", GMS_NAME_BYTES - 1);
    scope.session = session;
    memcpy(scope.tag, tag, length + 1);
    return GMS_OK;
}

/* NULL is "no memory" to PyTorch: it frees what it has cached and tries again, or raises. */
void *gms_torch_alloc(ssize_t bytes, int device, void *stream)
{
    struct gms_vmm_cuda_device own;
    void *address = NULL;
    (void)stream;
    struct segment *segment = scope.session != NULL && bytes > 0 ? calloc(1, sizeof *segment) : NULL;
    if (segment == NULL)
        return NULL;
    pthread_mutex_lock(&lock);
    if (!scope.session->vmm->cpu_addresses && (gms_vmm_cuda_ready(&own, NULL) != GMS_OK || own.ordinal != device))
        address = NULL; /* another GPU than this session's */
    else if (gms_region_alloc(scope.session, scope.tag, (uint64_t)bytes, &address, NULL) == GMS_OK) {
        *segment = (struct segment){.next = segments, .session = scope.session, .address = address};
        segments = segment;
    }
    pthread_mutex_unlock(&lock);
    if (address == NULL)
        free(segment);
    return address;
}

void gms_torch_free(void *address, ssize_t bytes, int device, void *stream)
{
    (void)bytes, (void)device, (void)stream;
    pthread_mutex_lock(&lock);
    for (struct segment **link = &segments; *link != NULL; link = &(*link)->next) {
        struct segment *segment = *link;
        if (segment->address != address)
            continue;
        *link = segment->next;
        (void)segment->session->vmm->sync(NULL); /* PyTorch may have work of any stream in flight there */
        (void)gms_region_free(segment->session, address, NULL);
        free(segment);
        break;
    }
    pthread_mutex_unlock(&lock);
}

void gms_torch_forget(const struct gms_session *session)
{
    pthread_mutex_lock(&lock);
    for (struct segment **link = &segments; *link != NULL;) {
        struct segment *segment = *link;
        if (segment->session == session) {
            *link = segment->next;
            free(segment);
        } else {
            link = &segment->next;
        }
    }
    pthread_mutex_unlock(&lock);
    if (scope.session == session)
        scope.session = NULL;
}
