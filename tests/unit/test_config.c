/* SPDX-License-Identifier: Apache-2.0
 *
 * The deployment file: every setting, and every way of getting one wrong. Reported fault V37.
 */
#include "config_support.h"

static struct gms_config other;

#include <locale.h>

/* ------------------------------------------------------------------------------------------------- settings ---- */

static void test_defaults(void **state)
{
    (void)state;
    assert_accepted(build((struct parts){0}));
    assert_string_equal(config.deployment, "demo");
    assert_string_equal(config.run_dir, "/run/gms");
    assert_int_equal(config.ranks, 2);
    assert_int_equal(config.capacity_bytes, 256 << 20);
    assert_int_equal(config.capacity_of_count, 0);
    assert_true(config.kv_verify_full);
    assert_int_equal(config.containment, GMS_CONTAINMENT_AUTO);
    assert_int_equal(config.operation_timeout_ns, 10 * GMS_NS_PER_S);
    assert_int_equal(config.round_timeout_ns, 5 * GMS_NS_PER_S);
    assert_int_equal(config.heartbeat_ns, 5 * GMS_NS_PER_S);
    assert_int_equal(config.fence_report_ns, 2 * GMS_NS_PER_S);
    assert_int_equal(config.transfer_stall_ns, 5 * GMS_NS_PER_S);
    assert_int_equal(config.reattach_ns, 5 * GMS_NS_PER_S);
    assert_int_equal(config.leave_ns, GMS_NS_PER_S);
    assert_int_equal(config.reclaim_policy, GMS_POLICY_GPU_PROOF);
    assert_int_equal(config.reclaim_provider, GMS_PROVIDER_AUTO);
    assert_int_equal(config.reclaim_grace_ns, 5 * GMS_NS_PER_S);
    assert_int_equal(config.reclaim_step, 1024);
    assert_int_equal(config.reclaim_page_pause_ns, 0);
    assert_int_equal(config.environment_bytes, 0);
    assert_int_equal(config.command_bytes, 0);
    assert_int_equal(config.on_serving_bytes, 0);
}

static void test_every_setting(void **state)
{
    (void)state;
    assert_accepted(build((struct parts){
        .memory = "backend = \"host\"; capacity_of = ( { rank = 1; capacity = \"255 MiB\"; } );",
        .more = "kv : { verify = \"none\"; };\n"
                "timeouts : { operation = \"3s\"; round = \"250ms\"; heartbeat = \"1min\"; fence_report = \"20ms\";"
                " transfer_stall = \"7s\"; reattach = \"9s\"; leave = \"0ms\"; };\n"
                "reclaim : { policy = \"process-death-timeout\"; provider = \"procmap\"; grace = \"90ms\"; step = 7;"
                " page_pause = \"2ms\"; };\n"
                "environment : { set = ( \"A=1\", \"B=\", \"C=x=y\" ); };\n"
                "engine : { command = [ \"prog\", \"\", \"a b\" ]; containment = \"subreaper\"; };\n"
                "hooks : { on_serving = ( \"/bin/true\", \"now\" ); };\n"}));
    assert_int_equal(gms_config_capacity(&config, 0), 256 << 20);
    assert_int_equal(gms_config_capacity(&config, 1), 255 << 20);
    assert_false(config.kv_verify_full);
    assert_int_equal(config.operation_timeout_ns, 3 * GMS_NS_PER_S);
    assert_int_equal(config.round_timeout_ns, 250 * GMS_NS_PER_MS);
    assert_int_equal(config.heartbeat_ns, 60 * GMS_NS_PER_S);
    assert_int_equal(config.fence_report_ns, 20 * GMS_NS_PER_MS);
    assert_int_equal(config.transfer_stall_ns, 7 * GMS_NS_PER_S);
    assert_int_equal(config.reattach_ns, 9 * GMS_NS_PER_S);
    assert_int_equal(config.leave_ns, 0);
    assert_int_equal(config.reclaim_policy, GMS_POLICY_PROCESS_DEATH_TIMEOUT);
    assert_int_equal(config.reclaim_provider, GMS_PROVIDER_PROCMAP);
    assert_int_equal(config.reclaim_grace_ns, 90 * GMS_NS_PER_MS);
    assert_int_equal(config.reclaim_step, 7);
    assert_int_equal(config.reclaim_page_pause_ns, 2 * GMS_NS_PER_MS);
    assert_int_equal(config.containment, GMS_CONTAINMENT_SUBREAPER);
    assert_int_equal(config.environment_bytes, sizeof("A=1\0B=\0C=x=y"));
    assert_memory_equal(config.environment, "A=1\0B=\0C=x=y", sizeof("A=1\0B=\0C=x=y"));
    assert_int_equal(config.command_bytes, sizeof("prog\0\0a b"));
    assert_memory_equal(config.command, "prog\0\0a b", sizeof("prog\0\0a b"));
    assert_memory_equal(config.on_serving, "/bin/true\0now", sizeof("/bin/true\0now"));
}

/* Device memory: seals are not read back unless asked for, and NCCL must not keep registrations (V31). */
static void test_device_memory(void **state)
{
    (void)state;
    assert_accepted(build((struct parts){0}));
    assert_int_equal(config.backend, GMS_MEMORY_HOST);
    assert_accepted(build((struct parts){.memory = "backend = \"cuda\";"}));
    assert_int_equal(config.backend, GMS_MEMORY_CUDA);
    assert_false(config.device_shared);
    assert_false(config.kv_verify_full);
    assert_int_equal(config.environment_bytes, sizeof("NCCL_GRAPH_REGISTER=0"));
    assert_string_equal(config.environment, "NCCL_GRAPH_REGISTER=0");
    assert_accepted(build((struct parts){.memory = "backend = \"cuda\"; device = \"shared\";",
                                         .more = "kv : { verify = \"full\"; };\nenvironment : { set = ( \"A=1\", "
                                                 "\"NCCL_GRAPH_REGISTER=1\" ); };\n"}));
    assert_true(config.device_shared);
    assert_true(config.kv_verify_full);
    assert_memory_equal(config.environment, "A=1\0NCCL_GRAPH_REGISTER=1", sizeof("A=1\0NCCL_GRAPH_REGISTER=1"));
    assert_refused(build((struct parts){.memory = "device = \"shared\";"}), 4, "memory.backend is \"host\"");
}

static void test_digest(void **state)
{
    uint64_t digest;
    (void)state;
    assert_accepted(build((struct parts){0}));
    digest = gms_config_digest(&config);
    memset(&config, 0x5a, sizeof(config)); /* whatever was there before */
    assert_accepted(build((struct parts){.more = "# other words, same settings"}));
    assert_true(gms_config_digest(&config) == digest);
    assert_accepted(build((struct parts){.more = "timeouts : { heartbeat = \"6s\"; };"}));
    assert_true(gms_config_digest(&config) != digest);
}

static void test_wrong_values(void **state)
{
    (void)state;
    assert_refused(build((struct parts){.deployment = "\"Demo\""}), 1, "deployment: \"Demo\"");
    assert_refused(build((struct parts){.deployment = "\"\""}), 1, "1 to 63");
    assert_refused(build((struct parts){.deployment = "\"-x\""}), 1, "not first");
    assert_refused(build((struct parts){.deployment = "( \"demo\" )"}), 1, "deployment: is a list, must be a string");
    assert_refused(build((struct parts){.run_dir = "\"run/gms\""}), 2, "not an absolute path");
    assert_refused(build((struct parts){.run_dir = "\"/run/a\\nb\""}), 2, "/run/a\\x0ab");
    assert_refused(build((struct parts){.ranks = "0"}), 3, "ranks: 0 is out of range: 1 to 1024");
    assert_refused(build((struct parts){.ranks = "1025"}), 3, "1 to 1024");
    assert_refused(build((struct parts){.ranks = "\"2\""}), 3, "ranks: is a string, must be a integer");
    assert_refused(build((struct parts){.capacity = "\"1KiB\""}), 4, "4.0 KiB to 16.0 TiB");
    assert_refused(build((struct parts){.capacity = "256"}), 4, "must be a size");
    assert_refused(build((struct parts){.memory = "backend = \"disk\";"}), 4, "is none of: host|cuda");
    assert_refused(build((struct parts){.more = "kv : { verify = \"Full\"; };"}), 5, "none|full");
    assert_refused(build((struct parts){.more = "kv : { verify = true; };"}), 5, "is a boolean");
    assert_refused(build((struct parts){.more = "kv = \"full\";"}), 5, "kv: is a string, must be a group");
    assert_refused(build((struct parts){.more = "timeouts : { round = \"1h\"; operation = \"2h\"; };"}), 5, "1.00 h");
    assert_refused(build((struct parts){.more = "timeouts : { round = 5; };"}), 5,
                   "timeouts.round: is a number without");
    assert_refused(build((struct parts){.more = "engine : { containment = \"none\"; };"}), 5, "subreaper");
    assert_refused(build((struct parts){.more = "engine : { command = ( \"\" ); };"}), 5, "no program's name");
    assert_refused(build((struct parts){.more = "engine : { command = ( \"a\", 1 ); };"}), 5,
                   "entry 2 is not a string");
    assert_refused(build((struct parts){.more = "engine : { command = \"a b\"; };"}), 5, "must be a list of strings");
    assert_refused(build((struct parts){.more = "hooks : { on_serving = ( \"prog\" ); };"}), 5, "not an absolute path");
}

static void test_structure(void **state)
{
    (void)state;
    assert_refused(build((struct parts){.more = "rank = 2;"}), 5, "rank: unknown setting");
    assert_refused(build((struct parts){.memory = "capacity_off = ();"}), 4, "memory.capacity_off: unknown setting");
    assert_refused(build((struct parts){.more = "ranks = 2;"}), 5, "duplicate");
    assert_refused(build((struct parts){.memory = "capacity = \"1GiB\";"}), 4, "duplicate");
    assert_refused(build((struct parts){.more = "complete = true;"}), 6, "duplicate");
    assert_refused("ranks = 2;\n", 2, "deployment: is missing");
    assert_refused("ranks = 2;\n", 2, "memory.capacity: is missing");
    assert_refused("ranks = 2;\nmemory : {\n};\n", 2, "memory.capacity: is missing");
    assert_refused("ranks = 2;\n", 2, "complete: is missing");
    assert_refused("", 1, "complete: is missing");
    assert_refused(build((struct parts){.more = "kv : {"}), 7, "syntax error");
    /* The end marker proves nothing when more could follow it. */
    assert_refused(
        "complete = true;\ndeployment = \"demo\";\nrun_dir = \"/run/gms\";\nranks = 2;\nmemory : { capacity = "
        "\"1GiB\"; };\n",
        1, "must be the last setting");
    assert_refused(build((struct parts){.more = "kv : { complete = true; };"}), 5, "kv.complete: unknown setting");
    snprintf(text, sizeof(text), "%s", "deployment = \"demo\";\ncomplete = false;\n");
    assert_refused(text, 2, "complete: is false");
}

static void test_capacity_of(void **state)
{
    static const char many[] = "{ rank = 1; capacity = \"1GiB\"; }";
    char list[2048] = "capacity_of = ( ";
    (void)state;
    assert_refused(build((struct parts){.memory = "capacity_of = ( { rank = 2; capacity = \"1GiB\"; } );"}), 4,
                   "rank 2 does not exist; ranks = 2");
    assert_refused(build((struct parts){.memory = "capacity_of = ( { rank = 1; capacity = \"1GiB\"; },\n{ rank = 1; "
                                                  "capacity = \"2GiB\"; } );"}),
                   5, "rank 1 stands here twice");
    assert_refused(build((struct parts){.memory = "capacity_of = ( { rank = 1; } );"}), 4,
                   "memory.capacity_of[].capacity: is missing in entry 1");
    assert_refused(build((struct parts){.memory = "capacity_of = ( { rank = 1; size = \"1GiB\"; } );"}), 4,
                   "memory.capacity_of[].size: unknown setting");
    assert_refused(build((struct parts){.memory = "capacity_of = ( 1 );"}), 4, "entry 1 is not a group");
    assert_refused(build((struct parts){.memory = "capacity_of = { };"}), 4, "must be a list of groups");
    for (int i = 0; i <= GMS_CONFIG_OVERRIDES; i++)
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i ? "," : "", many);
    snprintf(list + strlen(list), sizeof(list) - strlen(list), " );");
    assert_refused(build((struct parts){.memory = list}), 4, "17 groups, limit 16");
}

/* Everything that is wrong is said, each with its line. */
static void test_all_errors(void **state)
{
    (void)state;
    assert_int_equal(parse("deployment = \"A\";\nrun_dir = \"x\";\nranks = 0;\nmemory : { capacity = \"1\"; };\n"
                           "what = 1;\nkv : { verify = 1; };\ncomplete = true;\n"),
                     GMS_E_CONFIG);
    assert_int_equal(report_count, 6);
    for (int line = 1; line <= 6; line++) {
        char place[32];
        snprintf(place, sizeof(place), "test.cfg:%d: ", line);
        assert_non_null(strstr(reports, place));
    }
    assert_int_equal(strncmp(error.text, "test.cfg:1: ", 12), 0); /* the first of them */
    /* Nobody has to take the reports. */
    assert_int_equal(gms_config_parse("test.cfg", "x", 1, &config, NULL, NULL, NULL), GMS_E_CONFIG);
    /* Very many are cut. */
    text[0] = '\0';
    for (int i = 0; i < 1500; i++)
        snprintf(text + strlen(text), 32, "x%d = true;\n", i);
    assert_int_equal(parse(text), GMS_E_CONFIG);
    assert_in_range(report_count, 50, 110);
}

static void test_nothing_set_after_failure(void **state)
{
    (void)state;
    memset(&config, 0x5a, sizeof(config));
    memset(&other, 0x5a, sizeof(other));
    assert_int_equal(parse(build((struct parts){.ranks = "0"})), GMS_E_CONFIG);
    assert_memory_equal(&config, &other, sizeof(config));
}

/* ------------------------------------------------------------------------------------- numbers, strings (V37) --- */

/* Every numeric setting, with @ where its value stands. */
static const struct {
    const char *setting, *line;
    bool is_integer;
} numeric[] = {
    {"ranks", "ranks = @;", true},
    {"memory.capacity", "memory : { capacity = @; };", false},
    {"memory.capacity_of[].rank", "memory : { capacity_of = ( { rank = @; capacity = \"1GiB\"; } ); };", true},
    {"memory.capacity_of[].capacity", "memory : { capacity_of = ( { rank = 0; capacity = @; } ); };", false},
    {"budget.percent", "budget : { percent = @; };", true},
    {"budget.reserve", "budget : { reserve = @; };", false},
    {"timeouts.operation", "timeouts : { operation = @; };", false},
    {"timeouts.round", "timeouts : { round = @; };", false},
    {"timeouts.heartbeat", "timeouts : { heartbeat = @; };", false},
    {"timeouts.fence_report", "timeouts : { fence_report = @; };", false},
    {"timeouts.transfer_stall", "timeouts : { transfer_stall = @; };", false},
    {"timeouts.reattach", "timeouts : { reattach = @; };", false},
    {"timeouts.leave", "timeouts : { leave = @; };", false},
    {"detection.progress_timeout", "detection : { progress_timeout = @; };", false},
    {"hooks.before_kill_timeout", "hooks : { before_kill_timeout = @; };", false},
    {"environment.engines[].engine", "environment : { engines = ( { engine = @; set = (); } ); };", true},
    {"environment.ranks[].rank", "environment : { ranks = ( { rank = @; set = (); } ); };", true},
    {"timeouts.told_to_end", "timeouts : { told_to_end = @; };", false},
    {"standby.count", "standby : { count = @; };", true},
    {"standby.serve_wait", "standby : { serve_wait = @; };", false},
    {"standby.ready_within", "standby : { ready_within = @; };", false},
    {"environment.port_first", "environment : { port_first = @; };", true},
    {"environment.port_count", "environment : { port_count = @; };", true},
    {"reclaim.grace", "reclaim : { grace = @; };", false},
    {"reclaim.step", "reclaim : { step = @; };", true},
    {"reclaim.page_pause", "reclaim : { page_pause = @; };", false},
};
enum { NUMERIC = sizeof(numeric) / sizeof(numeric[0]) };

/* A file with only one line of its own; other required settings are missing, and that is reported at the last line. */
static void assert_number_refused(const char *line, const char *value)
{
    const char *at = strchr(line, '@');
    char place[] = "test.cfg:3: ";
    snprintf(text, sizeof(text), "# one\n# two\n%.*s%s%s\n\n\ncomplete = true;\n", (int)(at - line), line, value,
             at + 1);
    if (parse(text) != GMS_E_CONFIG || !strstr(reports, place))
        print_error("not refused: %s\n%s", text, reports);
    assert_int_equal(error.status, GMS_E_CONFIG);
    assert_non_null(strstr(reports, place));
}

static void check_numbers(void)
{
    /* What libconfig 1.5 wraps, converts to nothing or reads in another base. */
    static const char *const wrong[] = {
        "10737418240",
        "0xFFFFFFFF",
        "18446744073709551616",
        "10737418240L",
        "4294967298",
        "2147483650",
        "-2",
        "+2",
        "010",
        "02",
        "2.0",
        "1e0",
        ".5",
        "2.",
        "2L",
        "2LL",
        "0x2",
        "0b10",
        "1,5",
        "\"-2\"",
        "\"2\"",
        "\"\"",
        "\" \"",
        "\"2.5GiB\"",
        "\"1,5s\"",
        "\"10737418240\"",
        "\"18446744073709551616B\"",
        "\"18446744073709551616ns\"",
        "\"0xFFs\"",
        "\"1e3s\"",
        "\"s\"",
        "\"5 parsecs\"",
        "\"5s \"",
        "\"\xc2\xb5s\"",
        "true",
        "(2)",
        "[2]",
        "{ a = 2; }",
    };
    for (unsigned i = 0; i < NUMERIC; i++)
        for (unsigned j = 0; j < sizeof(wrong) / sizeof(wrong[0]); j++)
            assert_number_refused(numeric[i].line, wrong[j]);
    for (unsigned i = 0; i < NUMERIC; i++)
        if (!numeric[i].is_integer)
            assert_number_refused(numeric[i].line, "2");
}

static void test_numbers(void **state)
{
    (void)state;
    check_numbers();
    /* A wrapped number in a place of its own line, and right ones that look odd. */
    assert_refused(build((struct parts){.ranks = "\n\n4294967298"}), 5, "ranks: 4294967298");
    assert_accepted(build((struct parts){.deployment = "\"demo-99999999999\"", .ranks = "/* 4294967298 */ 2"}));
    assert_accepted(build((struct parts){.more = "environment : { set = ( \"A=10737418240\" ); }; # 10737418240L"}));
}

/* The table may grow; the list above has to grow with it. */
static void test_numeric_list_is_complete(void **state)
{
    char line[1024], name[64], kind[32];
    unsigned found = 0;
    FILE *stream = tmpfile();
    (void)state;

    assert_non_null(stream);
    gms_config_describe(stream);
    rewind(stream);
    while (fgets(line, sizeof(line), stream)) {
        assert_int_equal(sscanf(line, "%63s %31s", name, kind), 2);
        if (strcmp(kind, "integer") != 0 && strcmp(kind, "size") != 0 && strcmp(kind, "duration") != 0)
            continue;
        found++;
        bool listed = false;
        for (unsigned i = 0; i < NUMERIC; i++)
            listed = listed || strcmp(numeric[i].setting, name) == 0;
        if (!listed)
            print_error("%s is not in the list of this test\n", name);
        assert_true(listed);
    }
    fclose(stream);
    assert_int_equal(found, NUMERIC);
}

/* A comma as decimal point must change nothing. Where the locale is not installed, it is compiled for this test. */
static void test_numbers_in_german(void **state)
{
    char command[512];

    if (!setlocale(LC_ALL, "de_DE.UTF-8")) {
        snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1",
                 (char *)*state);
        if (system(command) != 0 || setenv("LOCPATH", *state, 1) != 0 || !setlocale(LC_ALL, "de_DE.UTF-8")) {
            print_message("skipped: this machine has no locale de_DE.UTF-8 and cannot make one\n");
            skip();
        }
    }
    assert_string_equal(localeconv()->decimal_point, ",");
    check_numbers();
    assert_accepted(build((struct parts){0}));
    assert_int_equal(config.capacity_bytes, 256 << 20);
    setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
}

static void test_strings(void **state)
{
    static char value[8 * 1024], long_value[4096 + 1];
    (void)state;
    memset(long_value, 'v', sizeof(long_value) - 1);

    assert_accepted(build((struct parts){.run_dir = "\"/run/\xc3\xbc\xe2\x82\xac\xf0\x9f\x99\x82\""}));
    assert_string_equal(config.run_dir, "/run/\xc3\xbc\xe2\x82\xac\xf0\x9f\x99\x82");
    snprintf(value, sizeof(value), "\"/%s\"", long_value);
    assert_refused(build((struct parts){.run_dir = value}), 2, "4097 bytes");
    snprintf(value, sizeof(value), "\"%s\"", long_value);
    assert_refused(build((struct parts){.deployment = value}), 1, "4096 bytes");

    snprintf(value, sizeof(value),
             "environment : { set = ( \"A=%s\", \"Q=\\\"\\\\ \\n\\t\\x01\xc3\xbc\", \"N=a\nb\" ); };", long_value);
    assert_accepted(build((struct parts){.more = value}));
    const char *entry = config.environment;
    assert_int_equal(strlen(entry), 2 + 4096);
    entry += strlen(entry) + 1;
    assert_string_equal(entry, "Q=\"\\ \n\t\x01\xc3\xbc");
    entry += strlen(entry) + 1;
    assert_string_equal(entry, "N=a\nb");

    assert_refused(build((struct parts){.more = "environment : { set = ( \"A=x\\x00y\" ); };"}), 5, "NUL");
    assert_refused(build((struct parts){.more = "environment : { set = ( \"A=\\q\" ); };"}), 5, "unknown escape");
    assert_refused(build((struct parts){.more = "engine : { command = ( \"a\" \"b\" ); };"}), 5, "is a comma missing");
    assert_refused(build((struct parts){.more = "engine : { command = ( \"a\" # \n \"b\" ); };"}), 6, "comma missing");
}

static void test_run_dir_length(void **state)
{
    char value[256];
    (void)state;
    /* 107 bytes hold a socket's path; the longest name of 2 ranks is "keeper.lock". */
    for (unsigned bytes = 90; bytes <= 110; bytes++) {
        snprintf(value, sizeof(value), "\"/%0*d\"", (int)bytes - 1, 0);
        if (bytes + strlen("/keeper.lock") <= 107)
            assert_accepted(build((struct parts){.run_dir = value}));
        else
            assert_refused(build((struct parts){.run_dir = value}), 2, "107");
    }
}

static void test_environment(void **state)
{
    static const char *const refused[] = {"GMS_RUN_DIR=/x",
                                          "GMS_RANK=0",
                                          "GMS_WORLD_SIZE=2",
                                          "GMS_LAUNCH_ID=x",
                                          "ENGINE_ID=0",
                                          "OMPI_X=1",
                                          "PMIX_RANK=0",
                                          "GMS_RANK_NAMES=x",
                                          "GMS_AGREED_NAMES=x",
                                          "FAILOVER_LOCK_PATH=",
                                          "A=${}",
                                          "A=${rank",
                                          "A=x${nobody}",
                                          "SLURM_PROCID=0",
                                          "PALS_RANK=0",
                                          "=x",
                                          "1A=x",
                                          "A B=x",
                                          "A-B=x",
                                          "A",
                                          "",
                                          "\xc3\xbc=x",
                                          " A=x"};
    static const char *const accepted[] = {"GMS_FOO=1",    "GMS_RANKS=1",   "ENGINE_ID2=1", "OMPI=1",
                                           "_=x",          "a1_B=",         "LD_PRELOAD=x", "OMPI_MCA_btl=tcp,self",
                                           "PRTE_MCA_x=1", "A=$x $ $$ $$x", "A=$${x}",      "A=p${rank}${port}"};
    static char value[200 * 1024];
    (void)state;
    for (unsigned i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        snprintf(value, sizeof(value), "environment : { set = ( \"%s\" ); };", refused[i]);
        assert_refused(build((struct parts){.more = value}), 5, "environment.set");
    }
    for (unsigned i = 0; i < sizeof(accepted) / sizeof(accepted[0]); i++) {
        snprintf(value, sizeof(value), "environment : { set = ( \"%s\" ); };", accepted[i]);
        assert_accepted(build((struct parts){.more = value}));
    }
    assert_refused(build((struct parts){.more = "environment : { set = ( \"A=1\", \"AB=1\",\n \"A=2\" ); };"}), 6,
                   "is set twice");
    assert_accepted(build((struct parts){.more = "environment : { set = ( \"AB=1\", \"A=1\", \"ABC=2\" ); };"}));

    assert_accepted(build((struct parts){
        .more =
            "environment : { engines = ( { engine = 7; set = ( \"A=1\", \"B=\" ); }, { engine = 0; set = ( \"A=2\" ); "
            "} ); ranks = ( { rank = 1; set = ( \"C=x=y\" ); } ); rename = ( \"GMS_*=TLLM_GMS_*\", \"A=B\" ); };"}));
    assert_int_equal(config.engine_environment_bytes, sizeof("7 A=1\0007 B=\0000 A=2"));
    assert_memory_equal(config.engine_environment, "7 A=1\0007 B=\0000 A=2", sizeof("7 A=1\0007 B=\0000 A=2"));
    assert_int_equal(config.rank_environment_bytes, sizeof("1 C=x=y"));
    assert_string_equal(config.rank_environment, "1 C=x=y");
    assert_int_equal(config.rename_bytes, sizeof("GMS_*=TLLM_GMS_*\0A=B"));
    assert_refused(build((struct parts){.more = "environment : { ranks = ( { rank = 2; set = ( \"A=1\" ); } ); };"}), 5,
                   "rank 2 does not exist");
    assert_refused(build((struct parts){.more = "environment : { engines = ( { engine = 1; set = ( \"A=1\" ); },\n"
                                                "{ engine = 1; set = ( \"B=1\" ); } ); };"}),
                   6, "1 stands here twice");
    assert_refused(build((struct parts){.more = "environment : { engines = ( { set = ( \"A=1\" ); } ); };"}), 5,
                   "environment.engines[].engine: is missing");
    assert_refused(build((struct parts){.more = "environment : { engines = ( { engine = 1; set = ( \"A\" ); } ); };"}),
                   5, "is not NAME=VALUE");
    static const char *const renames[] = {"A", "A=", "=A", "A*=B", "A=B*", "A=A", "A*=A*", "A B=C", "A=B=C"};
    for (unsigned i = 0; i < sizeof(renames) / sizeof(renames[0]); i++) {
        snprintf(value, sizeof(value), "environment : { rename = ( \"%s\" ); };", renames[i]);
        assert_refused(build((struct parts){.more = value}), 5, "environment.rename");
    }
    assert_refused(build((struct parts){.more = "environment : { port_first = 65000; port_count = 537; };"}), 5,
                   "goes beyond port 65535");
    assert_accepted(build((struct parts){.more = "environment : { port_first = 65000; port_count = 536; };"}));

    /* The room is used to its last byte and not beyond. */
    for (int over = 0; over <= 1; over++) {
        size_t at = (size_t)snprintf(value, sizeof(value), "environment : { set = ( \"A=");
        memset(value + at, 'x', GMS_CONFIG_ENVIRONMENT_BYTES - 3 + over);
        at += (size_t)(GMS_CONFIG_ENVIRONMENT_BYTES - 3 + over);
        snprintf(value + at, sizeof(value) - at, "\" ); };");
        if (over)
            assert_refused(build((struct parts){.more = value}), 5, "longer than 65536 bytes");
        else
            assert_accepted(build((struct parts){.more = value}));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_setting),
        cmocka_unit_test(test_device_memory),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_structure),
        cmocka_unit_test(test_capacity_of),
        cmocka_unit_test(test_all_errors),
        cmocka_unit_test(test_nothing_set_after_failure),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_numeric_list_is_complete),
        cmocka_unit_test_setup_teardown(test_numbers_in_german, unit_make_dir, unit_remove_dir),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_run_dir_length),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
