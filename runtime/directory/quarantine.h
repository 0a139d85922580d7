/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is suspected of what: for every slot of one pool on one rank, the set of dead writers that might still write it,
 * and the stamp of the owner that asked for it back. A file of the coordinator's alone: no engine maps it, and it is
 * left with the keeper as the pool's memory is, so it survives every restart.
 *
 *   +--------------------+ 0
 *   | header, 4096 bytes |  magic, version, pool, slot count; checksum
 *   +--------------------+ 4096
 *   | suspects, 4 each   |  a bit per place in the group's list of suspects (core/reclaim.h); bit 31: unknown ones
 *   +--------------------+ rounded up to 4096
 *   | stamps, 8 each     |  incarnation of the owner that stamped it; 0: nobody
 *   +--------------------+
 *
 * The slot words (directory.h) say what is in quarantine; this file says because of whom. A slot in quarantine without
 * suspects waits for other ranks only. Suspects are noted before a rank says that it has classified, and taken away
 * after the word says IDLE, so a crash in between errs to the safe side.
 *
 * Slots are atomics: the coordinator's worker returns slots while its main thread may classify the next takeover.
 */
#ifndef GMS_DIRECTORY_QUARANTINE_H
#define GMS_DIRECTORY_QUARANTINE_H

#include "directory/directory.h"

enum { GMS_QUARANTINE_VERSION = 1, GMS_QUARANTINE_UNKNOWN = 31 /* the place of suspects nobody can name */ };
#define GMS_QUARANTINE_MAGIC UINT64_C(0x31545251534d4751) /* "QGMSQRT1" */

/* One mapping of one file. */
struct gms_quarantine {
    void *base;
    size_t bytes;
    uint32_t pool, slot_count;
    int fd; /* owned; -1 */
};

/* A memfd, sealed against resize; nobody suspected of anything. Errors: INVALID, NO_MEMORY, DESCRIPTORS. */
gms_status gms_quarantine_create(uint32_t pool, uint32_t slot_count, struct gms_quarantine *ret_quarantine,
                                 struct gms_error *ret_error);
/* Maps and validates; takes ownership of `fd` on success only. Errors: CORRUPT, VERSION, MISMATCH (another pool or slot
 * count), NO_MEMORY. */
gms_status gms_quarantine_open(int fd, uint32_t pool, uint32_t slot_count, struct gms_quarantine *ret_quarantine,
                               struct gms_error *ret_error);
void gms_quarantine_close(struct gms_quarantine *quarantine); /* half-built and closed ones allowed */

uint32_t gms_quarantine_suspects(const struct gms_quarantine *quarantine, uint32_t slot);
void gms_quarantine_suspect(struct gms_quarantine *quarantine, uint32_t slot, uint32_t suspects); /* adds */
uint64_t gms_quarantine_stamp(const struct gms_quarantine *quarantine, uint32_t slot);

/* ------------------------------------------------------------------------------------------- takeovers -------- */

/*
 * After gms_directory_classify of `source` into `into`: what the source had leased or released, or left damaged, is
 * suspected of it (`place`) from now on; earlier suspects stay; what is free or adoptable is suspected of nobody.
 * `index` is the one that classify used. `into` NULL: the successor does not have the pool, only suspects are noted.
 * `source` NULL: what is suspected of anybody is put in quarantine in `into`.
 */
void gms_quarantine_classified(struct gms_quarantine *quarantine, const struct gms_directory_index *index,
                               const struct gms_directory *source, struct gms_directory *into, uint32_t place);
/* A directory that nothing was classified into yet: what is suspected of anybody is in quarantine there. */
void gms_quarantine_begin(const struct gms_quarantine *quarantine, struct gms_directory *into);
/* Nobody knows any more who wrote what: what the directory has in quarantine and, with `written`, leased or released,
 * is suspected of somebody unknown, for good. */
void gms_quarantine_distrust(struct gms_quarantine *quarantine, const struct gms_directory *directory, bool written);

/* ------------------------------------------------------------------------------------------- reclaim ---------- */

/* What one step of reclaim works on. */
struct gms_quarantine_pass {
    uint64_t owner;
    uint32_t chosen; /* suspects that are quiet */
    bool inherits;   /* any owner's stamp counts */
};

/* Stamps what is in quarantine; with `inherits` what has a stamp keeps it. *ret_by (NULL allowed), 32 counters: slots
 * suspected of each place. Returns how many are in quarantine. */
uint32_t gms_quarantine_stamp_all(struct gms_quarantine *quarantine, const struct gms_directory *directory,
                                  const struct gms_quarantine_pass *pass, uint32_t ret_by[32]);
/* May this rank not return the slot now? (Not in quarantine, no stamp that counts, or a suspect that is not chosen.) */
bool gms_quarantine_holds_back(const struct gms_quarantine *quarantine, const struct gms_directory *directory,
                               const struct gms_quarantine_pass *pass, uint32_t slot);
/* QUARANTINED to IDLE, then suspected of nobody. False: it was not in quarantine. *ret_suspects: who it was because of.
 */
bool gms_quarantine_return(struct gms_quarantine *quarantine, struct gms_directory *directory, uint32_t slot,
                           uint32_t *ret_suspects);
/* Those suspects are quiet: no slot is suspected of them any more. */
void gms_quarantine_clear(struct gms_quarantine *quarantine, uint32_t suspects);

#endif
