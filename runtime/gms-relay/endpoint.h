/* SPDX-License-Identifier: Apache-2.0
 *
 * Where an engine listens, and how it is spoken to:
 *
 *   unix:PATH, tcp:HOST:PORT      the line protocol (lines.h)
 *   http://HOST:PORT[/PREFIX]     an OpenAI server (openai.h); HOST is numeric, or localhost
 *
 * Text only.
 */
#ifndef GMS_RELAY_ENDPOINT_H
#define GMS_RELAY_ENDPOINT_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

struct relay_address {
    union {
        struct sockaddr any;
        struct sockaddr_un local;
        struct sockaddr_in inet;
        struct sockaddr_in6 inet6;
    };
    socklen_t bytes;
    bool openai;
    char host[128], prefix[128]; /* as in a Host header; what stands before /v1, "": nothing */
};

/* False: it is none of the forms above; *ret_address is undefined then. */
bool relay_address_read(const char *endpoint, struct relay_address *ret_address);
/* Is it one of them? And the OpenAI one? */
bool relay_endpoint_good(const char *endpoint);
bool relay_endpoint_is_openai(const char *endpoint);

#endif
