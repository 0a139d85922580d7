/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ports.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void gms_ports_init(struct gms_ports *ports, uint32_t first, uint32_t count)
{
    memset(ports, 0, sizeof *ports);
    ports->first = first;
    ports->count = count;
}

uint32_t gms_ports_find(const struct gms_ports *ports, uint64_t key)
{
    for (unsigned i = 0; i < GMS_PORTS_REMEMBERED; i++)
        if (ports->known[i].key == key && key != 0)
            return ports->known[i].port;
    return 0;
}

void gms_ports_learn(struct gms_ports *ports, uint64_t key, uint32_t port)
{
    if (key == 0 || gms_ports_find(ports, key) != 0)
        return;
    ports->known[ports->oldest].key = key;
    ports->known[ports->oldest].port = port;
    ports->oldest = (ports->oldest + 1) % GMS_PORTS_REMEMBERED;
}

/* Can both families bind it? A family that this host lacks says nothing against it. */
static bool is_free(uint16_t port)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_ANY)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    const struct {
        const struct sockaddr *address;
        socklen_t bytes;
    } families[] = {{(const struct sockaddr *)&four, sizeof four}, {(const struct sockaddr *)&six, sizeof six}};
    bool free = true;
    for (unsigned i = 0; i < 2 && free; i++) {
        int fd = socket(families[i].address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), only = 1;
        if (fd < 0)
            continue;
        if (i == 1)
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
        free = bind(fd, families[i].address, families[i].bytes) == 0;
        close(fd);
    }
    return free;
}

gms_status gms_ports_give(struct gms_ports *ports, uint64_t key, uint32_t *ret_port, struct gms_error *ret_error)
{
    *ret_port = gms_ports_find(ports, key);
    for (uint32_t tried = 0; *ret_port == 0 && tried < ports->count; tried++) {
        uint32_t port = ports->first + ports->next;
        ports->next = (ports->next + 1) % ports->count;
        if (!is_free((uint16_t)port))
            continue;
        gms_ports_learn(ports, key, port);
        *ret_port = port;
    }
    if (*ret_port == 0)
        return gms_fail(ret_error, GMS_E_BUSY,
                        "no port from %u to %u is free for MASTER_PORT: set environment.port_first and .port_count",
                        ports->first, ports->first + ports->count - 1);
    return GMS_OK;
}
