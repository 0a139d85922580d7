/* SPDX-License-Identifier: Apache-2.0
 *
 * What is reserved and what is mapped where. The driver unmaps only whole mappings and tells nobody what it has mapped,
 * so this is kept here; it makes no driver call. One thread at a time.
 */
#ifndef GMS_VMM_CUDA_BOOK_H
#define GMS_VMM_CUDA_BOOK_H

#include "vmm/cuda_api.h"
#include "vmm/vmm.h"

/* One mapping: `object` again and again in pieces of piece_bytes, then `tail` for what is left over (scratch alone). */
struct gms_cu_mapping {
    uint64_t address, bytes;
    uint64_t piece_bytes;
    gms_cu_memory object, tail; /* owned: kept until unmapped, so that a failed replacement can be undone; 0: none */
    enum gms_vmm_access access, limit;
};

struct gms_cu_reservation {
    uint64_t address, bytes;
};

struct gms_cu_book {
    struct gms_cu_reservation *reservations; /* owned, as the next */
    struct gms_cu_mapping *mappings;         /* in the order of their addresses */
    size_t reservation_count, reservation_room, mapping_count, mapping_room;
};

/* Room for one more of each, so that what follows cannot fail. False: no memory. */
bool gms_cu_book_make_room(struct gms_cu_book *book);
void gms_cu_book_reserve(struct gms_cu_book *book, uint64_t address, uint64_t bytes);
/* Is that exactly one reservation? */
bool gms_cu_book_is_whole(const struct gms_cu_book *book, uint64_t address, uint64_t bytes);
void gms_cu_book_unreserve(struct gms_cu_book *book, uint64_t address, uint64_t bytes);
/* Does [address, address + bytes) lie inside one reservation? */
bool gms_cu_book_is_reserved(const struct gms_cu_book *book, uint64_t address, uint64_t bytes);
/* The mappings inside the range: *ret_first and how many. False: one lies in it only in part. */
bool gms_cu_book_find(const struct gms_cu_book *book, uint64_t address, uint64_t bytes, size_t *ret_first,
                      size_t *ret_count);
void gms_cu_book_insert(struct gms_cu_book *book, const struct gms_cu_mapping *mapping);
void gms_cu_book_remove(struct gms_cu_book *book, size_t first, size_t count);

#endif
