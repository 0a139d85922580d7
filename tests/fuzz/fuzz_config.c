/* SPDX-License-Identifier: Apache-2.0
 *
 * The deployment file: any bytes give OK or CONFIG with a report; nothing is set after a failure; what is accepted is
 * within its limits, reads the same again, and ends with its end marker.
 */
#include "fuzz.h"

#include <string.h>

#include "config/config.h"

/* libconfig 1.5 does not free the token at hand when the syntax is wrong: a few bytes of a program that ends. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libconfig.so";
}

__attribute__((visibility("default"))) const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

static const char *const seeds[] = {
    "deployment = \"demo\";\nrun_dir = \"/run/gms\";\nranks = 2;\nmemory : { capacity = \"256MiB\"; };\ncomplete = "
    "true;\n",
    "deployment=\"a-1\" run_dir=\"/r\" ranks=1024 memory={backend=\"host\" capacity=\"1GB\" capacity_of=({rank=1023;"
    "capacity=\"4KiB\"},{rank=0 capacity=\"16TiB\"})} kv={verify=\"none\"} timeouts={operation=\"1h\" round=\"100ms\" "
    "heartbeat=\"1 min\" fence_report=\"10000us\" transfer_stall=\"5s\"} complete=true",
    "# c\ndeployment = \"x\";// c\nrun_dir = \"/r\\x41\\\"\"; /* c\n */ ranks = 3;\nmemory : { capacity = \"64KiB\"; "
    "};\n"
    "environment : { set = ( \"A=1\", \"B=\\n\" ); };\nengine : { command = [ \"p\", \"\" ]; containment = \"auto\"; "
    "};\n"
    "hooks : { on_serving = ( \"/bin/true\" ); };\ncomplete = TRUE\n",
    "ranks = 4294967298;\n@include \"x.cfg\"\ncomplete = true;\n",
};

size_t fuzz_seed(size_t index, uint8_t *ret_data, size_t capacity)
{
    size_t bytes;
    if (index >= sizeof(seeds) / sizeof(seeds[0]))
        return 0;
    bytes = strlen(seeds[index]);
    FUZZ_CHECK(bytes <= capacity);
    memcpy(ret_data, seeds[index], bytes);
    return bytes;
}

static void count(void *context, const char *text)
{
    FUZZ_CHECK(strncmp(text, "fuzz.cfg:", 9) == 0 || strncmp(text, "and more", 8) == 0);
    ++*(unsigned *)context;
}

/* "word\0" repeated, to the last byte. */
static void check_packed(const char *packed, uint32_t bytes, size_t room)
{
    FUZZ_CHECK(bytes <= room);
    FUZZ_CHECK(bytes == 0 || packed[bytes - 1] == '\0');
}

static void check_accepted(const struct gms_config *config, const char *text)
{
    FUZZ_CHECK(config->deployment[0] != '\0' && memchr(config->deployment, '\0', sizeof(config->deployment)));
    FUZZ_CHECK(config->run_dir[0] == '/' && memchr(config->run_dir, '\0', sizeof(config->run_dir)));
    FUZZ_CHECK(config->ranks >= 1 && config->ranks <= GMS_MAX_RANKS);
    FUZZ_CHECK(config->capacity_of_count <= GMS_CONFIG_OVERRIDES);
    for (uint32_t rank = 0; rank < config->ranks; rank++) {
        uint64_t capacity = gms_config_capacity(config, rank);
        FUZZ_CHECK(capacity >= 4096 && capacity <= UINT64_C(1) << 44);
    }
    check_packed(config->environment, config->environment_bytes, sizeof(config->environment));
    check_packed(config->command, config->command_bytes, sizeof(config->command));
    check_packed(config->on_serving, config->on_serving_bytes, sizeof(config->on_serving));
    FUZZ_CHECK(config->operation_timeout_ns > 0 && config->round_timeout_ns > 0 && config->heartbeat_ns > 0);
    FUZZ_CHECK(config->fence_report_ns > 0 && config->transfer_stall_ns > 0);
    FUZZ_CHECK(strcasestr(text, "complete") && strcasestr(text, "true"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct gms_config config, again, untouched;
    struct gms_error error = {.status = GMS_OK};
    unsigned reports = 0;

    memset(&config, 0x5a, sizeof(config));
    memset(&untouched, 0x5a, sizeof(untouched));
    const gms_status status = gms_config_parse("fuzz.cfg", (const char *)data, bytes, &config, count, &reports, &error);
    if (status != GMS_OK) {
        FUZZ_CHECK(status == GMS_E_CONFIG && error.status == status && error.text[0] != '\0' && reports > 0);
        FUZZ_CHECK(memcmp(&config, &untouched, sizeof(config)) == 0);
        return 0;
    }
    FUZZ_CHECK(reports == 0);
    char *text = strndup((const char *)data, bytes);
    FUZZ_CHECK(text);
    check_accepted(&config, text);
    free(text);
    FUZZ_CHECK(gms_config_parse("fuzz.cfg", (const char *)data, bytes, &again, NULL, NULL, NULL) == GMS_OK);
    FUZZ_CHECK(memcmp(&config, &again, sizeof(config)) == 0 && gms_config_digest(&config) == gms_config_digest(&again));
    return 0;
}
