/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-relay/endpoint.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_port(const char *text, uint16_t *ret_port)
{
    unsigned long value = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0')
        return false;
    value = strtoul(text, NULL, 10);
    *ret_port = (uint16_t)value;
    return value > 0 && value <= 65535;
}

static bool read_host_port(const char *text, struct relay_address *address)
{
    char host[64];
    uint16_t port;
    const char *colon = strrchr(text, ':');
    if (colon == NULL || !read_port(colon + 1, &port) || (size_t)(colon - text) >= sizeof host || colon == text)
        return false;
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    snprintf(address->host, sizeof address->host, "%s", text);
    size_t length = strlen(host);
    if (host[0] == '[' && host[length - 1] == ']') {
        host[length - 1] = '\0';
        address->inet6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
        address->bytes = sizeof address->inet6;
        return inet_pton(AF_INET6, host + 1, &address->inet6.sin6_addr) == 1;
    }
    address->inet = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    address->bytes = sizeof address->inet;
    return inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &address->inet.sin_addr) == 1;
}

static bool read_http(const char *text, struct relay_address *address)
{
    char host[128];
    size_t length = strcspn(text, "/"), prefix = strlen(text + length);
    if (length >= sizeof host || prefix >= sizeof address->prefix)
        return false;
    memcpy(host, text, length);
    host[length] = '\0';
    memcpy(address->prefix, text + length, prefix + 1);
    while (prefix > 0 && address->prefix[prefix - 1] == '/')
        address->prefix[--prefix] = '\0';
    if (prefix >= 3 && strcmp(address->prefix + prefix - 3, "/v1") == 0) /* as base URLs are written */
        address->prefix[prefix - 3] = '\0';
    address->openai = true;
    return read_host_port(host, address);
}

bool relay_address_read(const char *endpoint, struct relay_address *ret_address)
{
    memset(ret_address, 0, sizeof *ret_address);
    for (const char *at = endpoint; *at != '\0'; at++)
        if ((unsigned char)*at <= 0x20 || *at == 0x7f)
            return false;
    if (strncmp(endpoint, "http://", 7) == 0)
        return read_http(endpoint + 7, ret_address);
    if (strncmp(endpoint, "tcp:", 4) == 0)
        return read_host_port(endpoint + 4, ret_address);
    const char *path = endpoint + 5;
    if (strncmp(endpoint, "unix:", 5) != 0 || path[0] == '\0' || strlen(path) >= sizeof ret_address->local.sun_path)
        return false;
    ret_address->local.sun_family = AF_UNIX;
    memcpy(ret_address->local.sun_path, path, strlen(path) + 1);
    ret_address->bytes = sizeof ret_address->local;
    return true;
}

bool relay_endpoint_good(const char *endpoint)
{
    struct relay_address address;
    return relay_address_read(endpoint, &address);
}

bool relay_endpoint_is_openai(const char *endpoint)
{
    struct relay_address address;
    return relay_address_read(endpoint, &address) && address.openai;
}
