/* SPDX-License-Identifier: Apache-2.0
 *
 * The agreed environment as text: what ${...} stands for, what comes over what, what is inherited, and how a difference
 * between ranks is told. And the ports that engine starts get.
 */
#include "unit_support.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "config/environment.h"
#include "config/environment_difference.h"
#include "daemon/ports.h"

static struct gms_config config;
static char rendered[GMS_ENVIRONMENT_BYTES];
static size_t rendered_bytes;

static void add(char *packed, uint32_t *inout_bytes, const char *entry)
{
    memcpy(packed + *inout_bytes, entry, strlen(entry) + 1);
    *inout_bytes += (uint32_t)strlen(entry) + 1;
}

static int clear(void **state)
{
    (void)state;
    memset(&config, 0, sizeof config);
    snprintf(config.deployment, sizeof config.deployment, "demo");
    snprintf(config.run_dir, sizeof config.run_dir, "/run/demo");
    config.ranks = 4;
    return 0;
}

static const struct gms_environment_place middle = {.rank = 3,
                                                    .ranks = 4,
                                                    .local_rank = 1,
                                                    .local_ranks = 2,
                                                    .engine = 5,
                                                    .port = 23456,
                                                    .host = "node-b",
                                                    .address = "10.1.2.3",
                                                    .master_address = "node-a"};

static void render(const void *inherited, size_t bytes)
{
    struct gms_error error;
    assert_ok(
        gms_environment_render(&config, inherited, bytes, &middle, rendered, sizeof rendered, &rendered_bytes, &error));
}

/* NULL: not set. Fails when it is set twice. */
static const char *value_of(const char *name)
{
    const char *found = NULL;
    for (size_t at = 0; at < rendered_bytes; at += strlen(rendered + at) + 1) {
        if (strncmp(rendered + at, name, strlen(name)) != 0 || rendered[at + strlen(name)] != '=')
            continue;
        assert_null(found);
        found = rendered + at + strlen(name) + 1;
    }
    return found;
}

static bool names_have(const char *variable, const char *name)
{
    const char *list = value_of(variable);
    assert_non_null(list);
    for (const char *at = list; *at != '\0'; at += strcspn(at, " "), at += strspn(at, " "))
        if (strcspn(at, " ") == strlen(name) && strncmp(at, name, strlen(name)) == 0)
            return true;
    return false;
}

static void test_expansion(void **state)
{
    static const struct {
        const char *value, *expected;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"${rank}", "3"},
        {"${rank}${rank}", "33"},
        {"r${rank}of${world_size}", "r3of4"},
        {"${local_rank}/${local_world_size}", "1/2"},
        {"e${engine}", "e5"},
        {"tcp://${master_addr}:${port}", "tcp://node-a:23456"},
        {"${host}", "node-b"},
        {"${address}", "10.1.2.3"},
        {"${run_dir}/x", "/run/demo/x"},
        {"${deployment}", "demo"},
        {"$", "$"},
        {"$$", "$$"},
        {"$HOME $(id) `id` $ {rank}", "$HOME $(id) `id` $ {rank}"},
        {"$${rank}", "${rank}"},
        {"$${", "${"},
        {"$$${rank}", "$${rank}"},
        {"$x${rank}$", "$x3$"},
        {"a,b  \"'\n=\xc3\xa4", "a,b  \"'\n=\xc3\xa4"},
    };
    struct gms_error error;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char entry[256];
        clear(NULL);
        snprintf(entry, sizeof entry, "X=%s", cases[i].value);
        add(config.environment, &config.environment_bytes, entry);
        assert_true(gms_environment_check_value(cases[i].value, &error));
        render("", 0);
        assert_string_equal(value_of("X"), cases[i].expected);
    }
    static const char *const bad[] = {"${", "${}", "${rank", "x${Rank}", "${rank }", "$${a} ${b}", "${rank:-0}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(gms_environment_check_value(bad[i], &error));
        assert_non_null(strstr(error.text, "${local_rank}"));
    }
}

static void test_what_comes_over_what(void **state)
{
    static const char inherited[] = "FAILOVER_LOCK_PATH=/lock\0GMS_A=${rank}\0GMS_B=inherited\0GMS_EMPTY=";
    (void)state;
    add(config.environment, &config.environment_bytes, "GMS_B=all");
    add(config.environment, &config.environment_bytes, "C=all");
    add(config.environment, &config.environment_bytes, "D=all");
    add(config.environment, &config.environment_bytes, "E=");
    add(config.environment, &config.environment_bytes, "MASTER_ADDR=10.0.0.1");
    add(config.engine_environment, &config.engine_environment_bytes, "5 C=engine ${engine}");
    add(config.engine_environment, &config.engine_environment_bytes, "5 D=engine");
    add(config.engine_environment, &config.engine_environment_bytes, "4 C=another");
    add(config.rank_environment, &config.rank_environment_bytes, "3 D=rank");
    add(config.rank_environment, &config.rank_environment_bytes, "2 D=another");
    add(config.rank_environment, &config.rank_environment_bytes, "2 ONLY_TWO=x");
    render(inherited, sizeof inherited);
    assert_string_equal(value_of("FAILOVER_LOCK_PATH"), "/lock");
    assert_string_equal(value_of("GMS_A"), "${rank}"); /* what is inherited is no text of the file */
    assert_string_equal(value_of("GMS_B"), "all");
    assert_string_equal(value_of("GMS_EMPTY"), "");
    assert_string_equal(value_of("C"), "engine 5");
    assert_string_equal(value_of("D"), "rank");
    assert_string_equal(value_of("E"), "");
    assert_null(value_of("ONLY_TWO"));
    assert_string_equal(value_of("RANK"), "3");
    assert_string_equal(value_of("WORLD_SIZE"), "4");
    assert_string_equal(value_of("LOCAL_RANK"), "1");
    assert_string_equal(value_of("LOCAL_WORLD_SIZE"), "2");
    assert_string_equal(value_of("MASTER_ADDR"), "10.0.0.1");
    assert_string_equal(value_of("MASTER_PORT"), "23456");
}

static void test_what_is_compared(void **state)
{
    (void)state;
    add(config.environment, &config.environment_bytes, "FIXED=1");
    add(config.environment, &config.environment_bytes, "OF_RANK=x${local_rank}");
    add(config.environment, &config.environment_bytes, "OF_START=${port}");
    add(config.engine_environment, &config.engine_environment_bytes, "0 ELSEWHERE=${rank}");
    add(config.engine_environment, &config.engine_environment_bytes, "5 ELSEWHERE=1");
    add(config.rank_environment, &config.rank_environment_bytes, "2 FIXED=2"); /* not this rank's, yet it differs */
    add(config.rename, &config.rename_bytes, "OF_*=TLLM_OF_*");
    add(config.rename, &config.rename_bytes, "MASTER_PORT=TLLM_PORT");
    render("GMS_A=1", 8);
    static const char *const of_rank[] = {"RANK",      "LOCAL_RANK",       "FIXED",       "OF_RANK",
                                          "ELSEWHERE", "LOCAL_WORLD_SIZE", "TLLM_OF_RANK"};
    static const char *const agreed[] = {"GMS_A",    "WORLD_SIZE",    "MASTER_ADDR", "MASTER_PORT",
                                         "OF_START", "TLLM_OF_START", "TLLM_PORT"};
    for (size_t i = 0; i < 7; i++) {
        assert_true(names_have("GMS_RANK_NAMES", of_rank[i]));
        assert_false(names_have("GMS_AGREED_NAMES", of_rank[i]));
        assert_true(names_have("GMS_AGREED_NAMES", agreed[i]));
        assert_false(names_have("GMS_RANK_NAMES", agreed[i]));
    }
    assert_string_equal(value_of("TLLM_OF_RANK"), "x1");
    assert_string_equal(value_of("TLLM_PORT"), "23456");
    assert_string_equal(value_of("OF_RANK"), "x1"); /* a rename copies */
}

static void test_room(void **state)
{
    struct gms_error error;
    size_t bytes = 0;
    (void)state;
    memset(config.environment, 'x', 40000);
    memcpy(config.environment, "L=", 2);
    config.environment_bytes = 40001;
    render("", 0);
    assert_int_equal(strlen(value_of("L")), 40000 - 2);
    const size_t exact = rendered_bytes;
    for (size_t capacity = 0; capacity < exact; capacity += capacity < 64 || capacity > 39990 ? 1 : 977) {
        memset(rendered, 0, sizeof rendered);
        assert_status(gms_environment_render(&config, "", 0, &middle, rendered, capacity, &bytes, &error),
                      GMS_E_CONFIG);
        assert_int_equal(rendered[capacity], 0);
    }
    assert_ok(gms_environment_render(&config, "", 0, &middle, rendered, exact, &bytes, &error));
}

static void test_inheritance(void **state)
{
    char *environment[] = {"PATH=/bin",
                           "GMS_Z=1",
                           "GMS_RANK=1",
                           "GMS_RUN_DIR=/x",
                           "FAILOVER_LOCK_PATH=/l",
                           "GMS_A=",
                           "GMS_EPOCH=1",
                           "ENGINE_ID=3",
                           "GMS_LAUNCH_ID=",
                           "FAILOVER_LOCK_PATHS=/x",
                           "GMS_WORLD_SIZE=",
                           "GMS_=x",
                           "SLURM_GMS_X=",
                           "GMSX=1",
                           "GMS_NOT_ASSIGNED",
                           NULL};
    static const char expected[] = "FAILOVER_LOCK_PATH=/l\0GMS_A=\0GMS_Z=1";
    struct gms_error error;
    char variables[256];
    size_t bytes = 0;
    (void)state;
    assert_ok(gms_environment_inherit(environment, &config, variables, sizeof variables, &bytes, &error));
    assert_int_equal(bytes, sizeof expected);
    assert_memory_equal(variables, expected, sizeof expected);
    assert_ok(gms_environment_inherit(environment, &config, variables, sizeof expected, &bytes, &error));
    assert_status(gms_environment_inherit(environment, &config, variables, sizeof expected - 1, &bytes, &error),
                  GMS_E_CONFIG);
    assert_true(gms_environment_is_unknown("GMS_Z", 5));
    assert_false(gms_environment_is_unknown("GMS_RUN_DIR", 11));
    assert_false(gms_environment_is_unknown("GMS_NCCL_LIBRARY", 16));
    assert_false(gms_environment_is_unknown("FAILOVER_LOCK_PATH", 18));
}

/* A launcher that forwards only TLLM_: what arrived under a renamed name is the variable, unless that is there itself.
 */
static void test_renamed_back(void **state)
{
    char *environment[] = {"TLLM_GMS_A=forwarded",
                           "GMS_B=own",
                           "TLLM_GMS_B=copy",
                           "TLLM_GMS_RANK=1",
                           "LOCK=/l=",
                           "TLLM_GMS_=x",
                           "OTHER=1",
                           "TLLM_GMS",
                           "LOC=",
                           NULL};
    static const char expected[] = "GMS_B=own\0GMS_A=forwarded\0FAILOVER_LOCK_PATH=/l=";
    static const char copies[] = "TLLM_GMS_B=own\0TLLM_GMS_A=forwarded\0LOCK=/l=";
    struct gms_error error;
    char variables[256], renamed[256];
    size_t bytes = 0, renamed_bytes = 0;
    (void)state;
    add(config.rename, &config.rename_bytes, "GMS_*=TLLM_GMS_*");
    add(config.rename, &config.rename_bytes, "FAILOVER_LOCK_PATH=LOCK");
    add(config.rename, &config.rename_bytes, "FAILOVER_LOCK_PATH=LOC");
    add(config.rename, &config.rename_bytes, "PATH=OTHER"); /* nothing that is handed on */
    assert_ok(gms_environment_inherit(environment, &config, variables, sizeof variables, &bytes, &error));
    assert_int_equal(bytes, sizeof expected);
    assert_memory_equal(variables, expected, sizeof expected);
    assert_status(gms_environment_inherit(environment, &config, variables, sizeof expected - 1, &bytes, &error),
                  GMS_E_CONFIG);

    config.rename_bytes -= (uint32_t)(sizeof "FAILOVER_LOCK_PATH=LOC" + sizeof "PATH=OTHER"); /* there and back */
    assert_ok(
        gms_environment_renamed(&config, expected, sizeof expected, renamed, sizeof renamed, &renamed_bytes, &error));
    assert_int_equal(renamed_bytes, sizeof copies);
    assert_memory_equal(renamed, copies, sizeof copies);
    assert_status(
        gms_environment_renamed(&config, expected, sizeof expected, renamed, sizeof copies - 1, &renamed_bytes, &error),
        GMS_E_CONFIG);
}

static unsigned differ(const char *one, size_t one_bytes, const char *other, size_t other_bytes, char *ret_text,
                       size_t capacity)
{
    const struct gms_environment_list first = {one, one_bytes, 0}, second = {other, other_bytes, 7};
    return gms_environment_difference(&first, &second, ret_text, capacity);
}
#define DIFFER(one, other) differ(one, sizeof(one), other, sizeof(other), text, sizeof text)

static void test_difference(void **state)
{
    char text[256];
    (void)state;
    assert_int_equal(DIFFER("A=1\0B=2", "B=2\0A=1"), 0);
    assert_int_equal(DIFFER("A=1\0B=2", "A=1\0B=3"), 1);
    assert_string_equal(text, "B is \"2\" on rank 0, \"3\" on rank 7");
    assert_int_equal(DIFFER("A=1\0B=", "A=1"), 1); /* empty is not unset */
    assert_string_equal(text, "B is \"\" on rank 0, unset on rank 7");
    assert_int_equal(DIFFER("A=1", "A=1\0B="), 1);
    assert_string_equal(text, "B is unset on rank 0, \"\" on rank 7");
    assert_int_equal(DIFFER("A=1", "AB=1"), 2);
    assert_string_equal(text, "A is \"1\" on rank 0, unset on rank 7; AB is unset on rank 0, \"1\" on rank 7");
    assert_int_equal(DIFFER("A=a\nb\"\\", "A=\xc3\xa4 "), 1);
    assert_string_equal(text, "A is \"a\\x0ab\\\"\\\\\" on rank 0, \"\\xc3\\xa4 \" on rank 7");

    /* Long ones are shown where they differ; too many are counted. */
    static char one[33000], other[33000];
    memset(one, 'x', sizeof one - 1);
    memcpy(one, "A=", 2);
    memcpy(other, one, sizeof one);
    other[20000] = 'y';
    assert_int_equal(DIFFER(one, other), 1);
    assert_non_null(strstr(text, "xy"));
    assert_non_null(strstr(text, "(32997 bytes, from byte 19974)"));
    static const char many[] = "A=1\0B=1\0C=1\0D=1\0E=1\0F=1\0G=1\0H=1\0I=1";
    assert_int_equal(differ(many, sizeof many, "", 0, text, sizeof text), 9);
    assert_non_null(strstr(text, " more differ"));
    assert_true(strlen(text) < sizeof text);
}

static void test_ports(void **state)
{
    struct gms_ports ports, others;
    struct gms_error error;
    uint32_t first = 0, again = 0, next = 0;
    (void)state;
    /* Three ports of which the middle one is taken. */
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t bytes = sizeof address;
    int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(taken >= 0);
    assert_int_equal(bind(taken, (const struct sockaddr *)&address, bytes), 0);
    assert_int_equal(getsockname(taken, (struct sockaddr *)&address, &bytes), 0);
    const uint32_t middle_port = ntohs(address.sin_port);

    gms_ports_init(&ports, middle_port, 1);
    assert_status(gms_ports_give(&ports, 1, &first, &error), GMS_E_BUSY);
    assert_non_null(strstr(error.text, "environment.port_first"));
    close(taken);
    assert_ok(gms_ports_give(&ports, 1, &first, &error));
    assert_int_equal(first, middle_port);

    gms_ports_init(&ports, 23000, 1000);
    assert_ok(gms_ports_give(&ports, 11, &first, &error));
    assert_ok(gms_ports_give(&ports, 11, &again, &error)); /* one start, one port */
    assert_ok(gms_ports_give(&ports, 12, &next, &error));
    assert_int_equal(first, again);
    assert_int_not_equal(first, next);
    gms_ports_init(&others, 23000, 1000);
    assert_int_equal(gms_ports_find(&others, 11), 0);
    gms_ports_learn(&others, 11, first);
    gms_ports_learn(&others, 11, 1); /* the first word stands */
    assert_int_equal(gms_ports_find(&others, 11), first);
    for (uint64_t key = 100; key < 100 + GMS_PORTS_REMEMBERED; key++)
        gms_ports_learn(&others, key, 5);
    assert_int_equal(gms_ports_find(&others, 11), 0);
    assert_int_equal(gms_ports_find(&others, 163), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_expansion, clear),        cmocka_unit_test_setup(test_what_comes_over_what, clear),
        cmocka_unit_test_setup(test_what_is_compared, clear), cmocka_unit_test_setup(test_room, clear),
        cmocka_unit_test_setup(test_inheritance, clear),      cmocka_unit_test_setup(test_renamed_back, clear),
        cmocka_unit_test_setup(test_difference, clear),       cmocka_unit_test_setup(test_ports, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
