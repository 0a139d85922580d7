/* SPDX-License-Identifier: Apache-2.0
 *
 * Parking presets: what becomes of an engine's memory while it is parked, by tag, as the deployment file says it. The
 * coordinator knows no engine's tags; it hands the chosen list to every engine rank, which merges it with its own
 * (gms_tags_set), and the ranks compare the result when they join. Texts only.
 *
 *   shadow_failover   what the engine says, else weights and graphs stay and kv is swapped
 *   resident          nothing is given back: a promotion makes no driver call
 *   lean              all that is not the group's is given back; contents are kept in host memory
 *   own ones          parking.presets = ( { name = "NAME"; tags = ( "TAG=POLICY", ... ); } )
 *
 * TAG "*" is every tag but weights and kv, which are the group's: shared weights are always kept, kv is always swapped.
 */
#ifndef GMS_COORD_PARKING_H
#define GMS_COORD_PARKING_H

#include <stdbool.h>

#include "config/config.h"

/* Is `entry` a "TAG=POLICY" that a preset may hold? False: *ret_error says what is wrong. */
bool gms_parking_check(const char *entry, struct gms_tag *ret_tag, struct gms_error *ret_error);

/* The tags of preset `name`: of the file's own (config->presets) or built in. Errors: NOT_FOUND (names all there are),
 * CONFIG (too many tags). */
gms_status gms_parking_find(const struct gms_config *config, const char *name,
                            struct gms_tag ret_tags[GMS_CONFIG_PARKING_TAGS], uint32_t *ret_count,
                            struct gms_error *ret_error);
/* Is there a preset of this name without the file? */
bool gms_parking_is_built_in(const char *name);

#endif
