/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of a host's addresses the others are told: for doorbells between hosts, MASTER_ADDR and ${address}. IPv4.
 *
 *   "auto"            the first that is up and not the loopback's, else the loopback's
 *   "10.1.0.0/16"     the first in that network; "10.1.2.3": that one
 *   "ib0"             the first of that interface
 */
#ifndef GMS_COORD_ADDRESS_H
#define GMS_COORD_ADDRESS_H

#include <stdbool.h>

#include "gms/status.h"

enum { GMS_ADDRESS_BYTES = 16, GMS_ADDRESS_WANTED_BYTES = 32 };

/* Can `wanted` stand in the deployment file? False: *ret_error says why not. */
bool gms_address_check(const char *wanted, struct gms_error *ret_error);

/* This host's address, in digits. `host`: its name, for texts. Errors: CONFIG (it has none of that kind; the text says
 * which it has), SYSTEM. *ret_address is "" then. */
gms_status gms_address_find(const char *wanted, const char *host, char ret_address[GMS_ADDRESS_BYTES],
                            struct gms_error *ret_error);

#endif
