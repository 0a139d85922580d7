/* SPDX-License-Identifier: Apache-2.0 */
#include "config/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { KIND_AUTO, KIND_NETWORK, KIND_INTERFACE };

struct wanted {
    enum kind kind;
    uint32_t network, mask; /* host byte order */
    const char *interface;
};

/* False: it is none of the three. */
static bool parse(const char *text, struct wanted *ret_wanted)
{
    char address[INET_ADDRSTRLEN];
    struct in_addr number;
    size_t bytes = strcspn(text, "/");
    *ret_wanted = (struct wanted){.kind = KIND_AUTO};
    if (strcmp(text, "auto") == 0)
        return true;
    if (bytes < sizeof address) {
        snprintf(address, sizeof address, "%.*s", (int)bytes, text);
        if (inet_pton(AF_INET, address, &number) == 1) {
            char *end = NULL;
            unsigned long prefix = text[bytes] == '/' ? strtoul(text + bytes + 1, &end, 10) : 32;
            if (text[bytes] == '/' && (*end != '\0' || text[bytes + 1] < '0' || text[bytes + 1] > '9'))
                return false;
            if (prefix < 1 || prefix > 32)
                return false;
            ret_wanted->kind = KIND_NETWORK;
            ret_wanted->mask = UINT32_MAX << (32 - prefix);
            ret_wanted->network = ntohl(number.s_addr);
            return (ret_wanted->network & ~ret_wanted->mask) == 0;
        }
    }
    ret_wanted->kind = KIND_INTERFACE;
    ret_wanted->interface = text;
    return text[0] != '\0' && strlen(text) < IF_NAMESIZE && strpbrk(text, "/ \t\n") == NULL &&
           strspn(text, "0123456789.") != strlen(text);
}

bool gms_address_check(const char *wanted, struct gms_error *ret_error)
{
    struct wanted ignored;
    if (parse(wanted, &ignored))
        return true;
    gms_fail(
        ret_error, GMS_E_CONFIG,
        "\"%.40s\" is none of: auto, an IPv4 address (10.1.2.3), a network whose host bits are 0 (10.1.0.0/16), an "
        "interface (ib0)",
        wanted);
    return false;
}

static bool fits(const struct wanted *wanted, const struct ifaddrs *at, uint32_t address)
{
    switch (wanted->kind) {
    case KIND_AUTO:
        return (at->ifa_flags & IFF_LOOPBACK) == 0;
    case KIND_NETWORK:
        return (address & wanted->mask) == wanted->network;
    case KIND_INTERFACE:
        return strcmp(at->ifa_name, wanted->interface) == 0;
    }
    return false;
}

gms_status gms_address_find(const char *wanted, const char *host, char ret_address[GMS_ADDRESS_BYTES],
                            struct gms_error *ret_error)
{
    struct wanted parsed;
    struct ifaddrs *list = NULL;
    char have[256] = "";
    size_t used = 0;
    ret_address[0] = '\0';
    if (!parse(wanted, &parsed))
        return gms_fail(ret_error, GMS_E_CONFIG, "network.address: \"%.40s\" cannot be understood", wanted);
    if (getifaddrs(&list) != 0)
        return gms_fail(ret_error, GMS_E_SYSTEM, "the addresses of host %s cannot be read: %s", host, strerror(errno));
    for (const struct ifaddrs *at = list; at != NULL && ret_address[0] == '\0'; at = at->ifa_next) {
        struct sockaddr_in address;
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_UP) == 0)
            continue;
        memcpy(&address, at->ifa_addr, sizeof address);
        char digits[GMS_ADDRESS_BYTES];
        inet_ntop(AF_INET, &address.sin_addr, digits, sizeof digits);
        if (fits(&parsed, at, ntohl(address.sin_addr.s_addr)))
            memcpy(ret_address, digits, sizeof digits);
        else if (used < sizeof have)
            used += (size_t)snprintf(have + used, sizeof have - used, "%s%s %s", used > 0 ? ", " : "", at->ifa_name,
                                     digits);
    }
    freeifaddrs(list);
    if (ret_address[0] == '\0' && parsed.kind == KIND_AUTO)
        snprintf(ret_address, GMS_ADDRESS_BYTES, "127.0.0.1");
    if (ret_address[0] != '\0')
        return GMS_OK;
    return gms_fail(ret_error, GMS_E_CONFIG,
                    "network.address = \"%s\": host %s has no such address that is up; it has %s", wanted, host,
                    have[0] != '\0' ? have : "none");
}
