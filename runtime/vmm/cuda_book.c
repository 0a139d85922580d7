/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/cuda_book.h"

#include <stdlib.h>
#include <string.h>

static bool grow(void **items, size_t count, size_t *room, size_t item_bytes)
{
    if (count < *room) {
        return true;
    }
    const size_t more = *room > 0 ? 2 * *room : 16;
    void *grown = realloc(*items, more * item_bytes);
    if (!grown) {
        return false;
    }
    *items = grown;
    *room = more;
    return true;
}

bool gms_cu_book_make_room(struct gms_cu_book *book)
{
    return grow((void **)&book->reservations, book->reservation_count, &book->reservation_room,
                sizeof(*book->reservations)) &&
           grow((void **)&book->mappings, book->mapping_count, &book->mapping_room, sizeof(*book->mappings));
}

void gms_cu_book_reserve(struct gms_cu_book *book, uint64_t address, uint64_t bytes)
{
    book->reservations[book->reservation_count++] = (struct gms_cu_reservation){.address = address, .bytes = bytes};
}

static size_t place_of(const struct gms_cu_book *book, uint64_t address, uint64_t bytes)
{
    size_t place = 0;

    while (place < book->reservation_count &&
           (book->reservations[place].address != address || book->reservations[place].bytes != bytes)) {
        place++;
    }
    return place;
}

bool gms_cu_book_is_whole(const struct gms_cu_book *book, uint64_t address, uint64_t bytes)
{
    return place_of(book, address, bytes) < book->reservation_count;
}

void gms_cu_book_unreserve(struct gms_cu_book *book, uint64_t address, uint64_t bytes)
{
    const size_t place = place_of(book, address, bytes);

    if (place < book->reservation_count) {
        book->reservations[place] = book->reservations[--book->reservation_count];
    }
}

bool gms_cu_book_is_reserved(const struct gms_cu_book *book, uint64_t address, uint64_t bytes)
{
    for (size_t i = 0; i < book->reservation_count; i++) {
        const struct gms_cu_reservation *range = &book->reservations[i];

        if (address >= range->address && address - range->address <= range->bytes &&
            bytes <= range->bytes - (address - range->address)) {
            return true;
        }
    }
    return false;
}

bool gms_cu_book_find(const struct gms_cu_book *book, uint64_t address, uint64_t bytes, size_t *ret_first,
                      size_t *ret_count)
{
    size_t first = 0;

    while (first < book->mapping_count && book->mappings[first].address + book->mappings[first].bytes <= address) {
        first++;
    }
    size_t end = first;
    while (end < book->mapping_count && book->mappings[end].address < address + bytes) {
        const struct gms_cu_mapping *mapping = &book->mappings[end++];

        if (mapping->address < address || mapping->address + mapping->bytes > address + bytes) {
            return false;
        }
    }
    *ret_first = first;
    *ret_count = end - first;
    return true;
}

void gms_cu_book_insert(struct gms_cu_book *book, const struct gms_cu_mapping *mapping)
{
    size_t place = book->mapping_count;

    while (place > 0 && book->mappings[place - 1].address > mapping->address) {
        place--;
    }
    memmove(&book->mappings[place + 1], &book->mappings[place],
            (book->mapping_count - place) * sizeof(*book->mappings));
    book->mappings[place] = *mapping;
    book->mapping_count++;
}

void gms_cu_book_remove(struct gms_cu_book *book, size_t first, size_t count)
{
    book->mapping_count -= count;
    memmove(&book->mappings[first], &book->mappings[first + count],
            (book->mapping_count - first) * sizeof(*book->mappings));
}
