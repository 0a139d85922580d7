/* SPDX-License-Identifier: Apache-2.0
 *
 * The listening socket of a server: "unix:PATH" or "tcp:127.0.0.1:PORT".
 *
 * Engines of one deployment may share PATH or PORT: a parked engine has a socket that nobody can reach, and takes the
 * name over when it starts to listen (a Unix socket is bound beside PATH and renamed, so PATH is never absent).
 */
#ifndef MINILLM_ENDPOINT_H
#define MINILLM_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct endpoint {
    int fd;
    bool is_unix, listening;
    char name[128]; /* as clients use it */
    char path[108]; /* Unix: PATH */
    dev_t device;   /* Unix: of our socket file, so that only ours is removed */
    ino_t inode;
};

/* False with the reason in ret_text, nothing left open. */
bool endpoint_open(struct endpoint *endpoint, const char *listen, char *ret_text, size_t text_bytes);
bool endpoint_listen(struct endpoint *endpoint, char *ret_text, size_t text_bytes);
/* Closes, and removes the socket file if it is still ours. */
void endpoint_close(struct endpoint *endpoint);

#endif
