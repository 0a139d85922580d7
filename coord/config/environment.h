/* SPDX-License-Identifier: Apache-2.0
 *
 * The agreed environment of engine ranks: what rank 0 brings, what the deployment file adds, what a rank's place is.
 * Texts only: no process, no socket, no MPI. A list of variables is "NAME=VALUE\0" repeated; values are bytes, any but
 * NUL.
 *
 *   rank 0's GMS_* and FAILOVER_LOCK_PATH     as they are
 *   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   environment.set, .engines, .ranks         each over the former; ${...} expanded
 *   environment.rename                        copies under other names
 *   GMS_RANK_NAMES, GMS_AGREED_NAMES          which of them differ by rank, which must not: libgms compares these
 *
 * One meaning each, for coordinator and engine ranks alike: an empty value is a value and is set; an unset name is not
 * set, and differs from an empty one and from every other; a GMS_ name that this version does not know is carried like
 * any other, and named once in rank 0's log.
 *
 * In values of the file `${name}` stands for one of: rank, local_rank, world_size, local_world_size, engine, port,
 * host, address (of that host, as network.address says), master_addr, run_dir, deployment. `$${` stands for `${`; a `$`
 * before anything else stands for itself. What a value expands to is not looked at again.
 */
#ifndef GMS_COORD_ENVIRONMENT_H
#define GMS_COORD_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"
#include "gms/status.h"

enum {
    GMS_ENVIRONMENT_BYTES = 144 * 1024,          /* all variables of one engine rank */
    GMS_ENVIRONMENT_INHERITED_BYTES = 64 * 1024, /* those that rank 0 brings */
};

/* Where an engine rank runs. Texts borrowed. */
struct gms_environment_place {
    uint32_t rank, ranks, local_rank, local_ranks;
    uint32_t engine, port;
    const char *host, *address, *master_address;
};

/* `value` with its ${...} replaced by what `place` says, NUL-terminated. Errors: CONFIG (does not fit, or names none).
 */
gms_status gms_environment_expand(const char *value, const struct gms_config *config,
                                  const struct gms_environment_place *place, char *ret_text, size_t capacity,
                                  struct gms_error *ret_error);
/* Does it name anything that only a rank of an engine knows: beside engine, world_size, run_dir and deployment? */
bool gms_environment_is_of_process(const char *value);
/* May `value` stand in the deployment file? False: *ret_error says what is wrong with its ${...}. */
bool gms_environment_check_value(const char *value, struct gms_error *ret_error);
/* Would it differ from rank to rank? */
bool gms_environment_is_of_rank(const char *value);
/* Is `entry` ("FROM=TO") a pair of names, both or neither ending in `*`? False: *ret_error. */
bool gms_environment_check_rename(const char *entry, struct gms_error *ret_error);

/*
 * All variables of one engine rank, into `variables` (`capacity` bytes). Errors: CONFIG (they do not fit: bytes and
 * limit).
 */
gms_status gms_environment_render(const struct gms_config *config, const void *inherited, size_t inherited_bytes,
                                  const struct gms_environment_place *place, char *variables, size_t capacity,
                                  size_t *ret_bytes, struct gms_error *ret_error);

/* What a coordinator has in its own environment and hands on: GMS_* that are no place of its own, and
 * FAILOVER_LOCK_PATH, in order of names. Then what it lacks and has under a name that environment.rename of `config`
 * makes of it: launchers that forward only some prefixes have forwarded that. Errors: CONFIG (too long: bytes and
 * limit). */
gms_status gms_environment_inherit(char *const environment[], const struct gms_config *config, char *variables,
                                   size_t capacity, size_t *ret_bytes, struct gms_error *ret_error);
/* The copies that environment.rename makes of `variables`, under their new names. Errors: CONFIG (they do not fit). */
gms_status gms_environment_renamed(const struct gms_config *config, const void *variables, size_t bytes,
                                   char *ret_copies, size_t capacity, size_t *ret_bytes, struct gms_error *ret_error);
/* A GMS_ name that no program of this version reads. */
bool gms_environment_is_unknown(const char *name, size_t bytes);

/* Of an entry NAME=VALUE. */
size_t gms_environment_name_bytes(const char *entry);
/* The entry of that name in a list; NULL: none. Borrowed. */
const char *gms_environment_find(const char *variables, size_t bytes, const char *name, size_t length);

#endif
