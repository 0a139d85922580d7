/* SPDX-License-Identifier: Apache-2.0
 *
 * The deployment file: every setting, every way of getting one wrong, and files that were damaged. Reported faults V37,
 * V38 and V41.
 */
#include "unit_support.h"

#include <glob.h>
#include <locale.h>
#include <sched.h>

#include "config.h"

enum { TEXT_BYTES = 512 * 1024 };

static char text[TEXT_BYTES];   /* the file of a test */
static char reports[64 * 1024]; /* everything that was reported, a line each */
static unsigned report_count;
static struct gms_config config, other;
static struct gms_error error;

static void collect(void *context, const char *line)
{
    size_t used = strlen(reports);
    (void)context;
    report_count++;
    snprintf(reports + used, sizeof(reports) - used, "%s\n", line);
}

static gms_status parse_bytes(const char *data, size_t bytes)
{
    reports[0] = '\0';
    report_count = 0;
    memset(&error, 0, sizeof(error));
    return gms_config_parse("test.cfg", data, bytes, &config, collect, NULL, &error);
}

static gms_status parse(const char *data)
{
    return parse_bytes(data, strlen(data));
}

/* A valid file of which one part is replaced; NULL: leave as it is. */
struct parts {
    const char *deployment, *run_dir, *ranks, *capacity, *memory, *more;
};

static const char *build(struct parts parts)
{
    snprintf(text, sizeof(text),
             "deployment = %s;\nrun_dir = %s;\nranks = %s;\nmemory : { capacity = %s; %s };\n%s\ncomplete = true;\n",
             parts.deployment ? parts.deployment : "\"demo\"", parts.run_dir ? parts.run_dir : "\"/run/gms\"",
             parts.ranks ? parts.ranks : "2", parts.capacity ? parts.capacity : "\"256MiB\"",
             parts.memory ? parts.memory : "", parts.more ? parts.more : "");
    return text;
}

#define assert_accepted(data)                                                                                          \
    do {                                                                                                               \
        if (parse(data) != GMS_OK)                                                                                     \
            print_error("refused: %s\n%s", data, reports);                                                             \
        assert_int_equal(error.status, GMS_OK);                                                                        \
        assert_int_equal(report_count, 0);                                                                             \
    } while (0)

/* Refused, with "test.cfg:LINE: " and `part` in one of the reports. */
#define assert_refused(data, line, part)                                                                               \
    do {                                                                                                               \
        char place[64];                                                                                                \
        snprintf(place, sizeof(place), "test.cfg:%d: ", line);                                                         \
        if (parse(data) != GMS_E_CONFIG || !strstr(reports, place) || !strstr(reports, part))                          \
            print_error("wants %s...%s\nfile: %.300s\ngot: %s\n", place, part, data, reports);                         \
        assert_int_equal(error.status, GMS_E_CONFIG);                                                                  \
        assert_non_null(strstr(reports, place));                                                                       \
        assert_non_null(strstr(reports, part));                                                                        \
    } while (0)

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
                " transfer_stall = \"7s\"; };\n"
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
    assert_int_equal(config.containment, GMS_CONTAINMENT_SUBREAPER);
    assert_int_equal(config.environment_bytes, sizeof("A=1\0B=\0C=x=y"));
    assert_memory_equal(config.environment, "A=1\0B=\0C=x=y", sizeof("A=1\0B=\0C=x=y"));
    assert_int_equal(config.command_bytes, sizeof("prog\0\0a b"));
    assert_memory_equal(config.command, "prog\0\0a b", sizeof("prog\0\0a b"));
    assert_memory_equal(config.on_serving, "/bin/true\0now", sizeof("/bin/true\0now"));
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
    assert_refused(build((struct parts){.memory = "backend = \"cuda\";"}), 4, "is none of: host");
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
    {"timeouts.operation", "timeouts : { operation = @; };", false},
    {"timeouts.round", "timeouts : { round = @; };", false},
    {"timeouts.heartbeat", "timeouts : { heartbeat = @; };", false},
    {"timeouts.fence_report", "timeouts : { fence_report = @; };", false},
    {"timeouts.transfer_stall", "timeouts : { transfer_stall = @; };", false},
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
                                          "PRTE_MCA_x=1",
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
    static const char *const accepted[] = {"GMS_FOO=1", "GMS_RANKS=1", "ENGINE_ID2=1", "OMPI=1",
                                           "_=x",       "a1_B=",       "LD_PRELOAD=x"};
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

/* ------------------------------------------------------------------------------------------ whole files (V38) --- */

static char *slurp(const char *path, size_t *ret_bytes)
{
    FILE *stream = fopen(path, "rb");
    char *data = calloc(1, TEXT_BYTES);
    assert_non_null(stream);
    assert_non_null(data);
    *ret_bytes = fread(data, 1, TEXT_BYTES - 1, stream);
    fclose(stream);
    return data;
}

static void write_file(const char *path, const char *data, size_t bytes)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(data, 1, bytes, stream), bytes);
    assert_int_equal(fclose(stream), 0);
}

static void write_text(const char *path, const char *data)
{
    write_file(path, data, strlen(data));
}

static void test_shipped_files_cut(void **state)
{
    glob_t found;
    (void)state;
    assert_int_equal(glob(GMS_SOURCE_DIR "/examples/*.cfg", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        size_t bytes, whole = 0;
        char *data = slurp(found.gl_pathv[i], &bytes);
        if (gms_config_read(found.gl_pathv[i], &other, collect, NULL, &error) != GMS_OK)
            print_error("%s", error.text);
        assert_int_equal(gms_config_read(found.gl_pathv[i], &other, NULL, NULL, &error), GMS_OK);
        for (size_t cut = 0; cut < bytes; cut++) {
            if (parse_bytes(data, cut) == GMS_OK) {
                assert_memory_equal(&config, &other, sizeof(config));
                whole++;
            } else {
                assert_int_equal(error.status, GMS_E_CONFIG);
                assert_true(report_count > 0);
            }
        }
        assert_in_range(whole, 1, 64); /* only what follows the end marker may be lost */
        free(data);
    }
    globfree(&found);
}

static void test_described_in_readme(void **state)
{
    char described[16 * 1024] = "";
    size_t bytes;
    char *readme = slurp(GMS_SOURCE_DIR "/examples/README.md", &bytes);
    FILE *stream = fmemopen(described, sizeof(described) - 1, "w");
    (void)state;
    assert_non_null(stream);
    gms_config_describe(stream);
    fclose(stream);
    if (!strstr(readme, described))
        print_error("examples/README.md must hold this table as it is:\n%s", described);
    assert_non_null(strstr(readme, described));
    free(readme);
}

static void test_broken_bytes(void **state)
{
    (void)state;
    build((struct parts){0});
    size_t bytes = strlen(text), cut = bytes / 2;
    memmove(text + cut + 1, text + cut, bytes - cut);
    text[cut] = '\0';
    assert_int_equal(parse_bytes(text, bytes + 1), GMS_E_CONFIG);
    assert_non_null(strstr(reports, "NUL byte"));

    build((struct parts){0});
    memmove(text + 3, text, bytes + 1);
    memcpy(text, "\xef\xbb\xbf", 3);
    assert_refused(text, 1, "byte order mark");

    assert_refused("\xff\xfe\x01", 1, "error");
    memset(text, '(', 100000);
    memcpy(text, "a=", 2);
    text[100000] = '\0';
    assert_refused(text, 1, "");
    memset(text, 'a', 200000);
    text[200000] = '\0';
    assert_refused(text, 1, "");
    memset(text, '\n', GMS_CONFIG_FILE_BYTES + 1);
    assert_int_equal(parse_bytes(text, GMS_CONFIG_FILE_BYTES + 1), GMS_E_CONFIG);
    assert_non_null(strstr(reports, "limit 262144"));
    assert_int_equal(parse_bytes(text, GMS_CONFIG_FILE_BYTES), GMS_E_CONFIG);
    /* A great many names would keep libconfig busy for minutes. */
    size_t at = 0;
    for (int i = 0; at < GMS_CONFIG_FILE_BYTES - 16; i++)
        at += (size_t)snprintf(text + at, 16, "a%d=1;", i);
    assert_int_equal(parse_bytes(text, at), GMS_E_CONFIG);
    assert_non_null(strstr(reports, "more than 4096 names"));
}

static void test_read_from_files(void **state)
{
    char path[256];
    (void)state;
    snprintf(path, sizeof(path), "%s/main.cfg", (char *)*state);
    assert_status(gms_config_read(path, &config, NULL, NULL, &error), GMS_E_CONFIG);
    assert_text_has("No such file");
    assert_status(gms_config_read(*state, &config, NULL, NULL, &error), GMS_E_CONFIG);
    assert_text_has("not a regular file");
    assert_status(gms_config_read("/dev/zero", &config, NULL, NULL, &error), GMS_E_CONFIG);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_status(gms_config_read(path, &config, NULL, NULL, &error), GMS_E_CONFIG);
    assert_text_has("not a regular file");
    unlink(path);

    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, INT64_C(1) << 33), 0); /* 8 GiB of nothing */
    close(fd);
    reports[0] = '\0';
    assert_status(gms_config_read(path, &config, collect, NULL, &error), GMS_E_CONFIG);
    assert_text_has("8589934592 bytes, limit 262144");
    assert_non_null(strstr(reports, "8589934592"));

    build((struct parts){.ranks = "x"});
    write_file(path, text, strlen(text));
    assert_status(gms_config_read(path, &config, NULL, NULL, &error), GMS_E_CONFIG);
    assert_text_has("/main.cfg:3: ");
}

/* -------------------------------------------------------------------------------------------------- includes ---- */

/* Reads DIR/main.cfg, whose last but one line is `line`. */
static gms_status read_with(const char *dir, const char *line)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/main.cfg", dir);
    build((struct parts){.more = line});
    write_file(path, text, strlen(text));
    reports[0] = '\0';
    memset(&error, 0, sizeof(error));
    return gms_config_read(path, &config, collect, NULL, &error);
}

static void test_include(void **state)
{
    static const char timeouts[] = "timeouts : {\n  round = \"1s\"; operation = \"2s\";\n  heartbeat = \"3s\"; };\n"
                                   "# complete\n";
    char path[256], cwd[4096];

    snprintf(path, sizeof(path), "%s/timeouts.cfg", (char *)*state);
    write_file(path, timeouts, sizeof(timeouts) - 1);
    /* Beside the file, wherever we stand. */
    assert_non_null(getcwd(cwd, sizeof(cwd)));
    assert_int_equal(chdir("/"), 0);
    assert_ok(read_with(*state, "@include \"timeouts.cfg\""));
    assert_int_equal(config.heartbeat_ns, 3 * GMS_NS_PER_S);
    assert_int_equal(chdir(*state), 0);
    assert_ok(gms_config_read("main.cfg", &config, NULL, NULL, &error));
    assert_int_equal(chdir(cwd), 0);

    /* An included file that was cut is refused as well. */
    for (size_t cut = 0; cut < sizeof(timeouts) - 1; cut++) {
        write_file(path, timeouts, cut);
        assert_status(read_with(*state, "@include \"timeouts.cfg\""), GMS_E_CONFIG);
    }

    /* Errors in it carry its name and line. */
    write_text(path, "timeouts : {\n round = \"1\"; };\n# complete\n");
    assert_status(read_with(*state, "@include \"timeouts.cfg\""), GMS_E_CONFIG);
    assert_text_has("timeouts.cfg:2: timeouts.round");
    write_text(path, "\nkv = {{;\n# complete\n");
    assert_status(read_with(*state, "@include \"timeouts.cfg\""), GMS_E_CONFIG);
    assert_text_has("timeouts.cfg:2: ");
    write_text(path, "ranks = 4294967298;\n# complete\n");
    assert_status(read_with(*state, "@include \"timeouts.cfg\""), GMS_E_CONFIG);
    assert_text_has("timeouts.cfg:1: ranks: 4294967298");
    /* Only the file itself says that all is complete. */
    write_text(path, "complete = true;\n# complete\n");
    assert_status(read_with(*state, "@include \"timeouts.cfg\""), GMS_E_CONFIG);
}

static void test_include_refused(void **state)
{
    char path[256], line[600];

    assert_status(read_with(*state, "@include \"none.cfg\""), GMS_E_CONFIG);
    assert_text_has("No such file");
    assert_status(read_with(*state, "@include \"main.cfg\""), GMS_E_CONFIG); /* itself */
    snprintf(path, sizeof(path), "%s/self.cfg", (char *)*state);
    write_text(path, "@include \"self.cfg\"\n# complete\n");
    assert_status(read_with(*state, "@include \"self.cfg\""), GMS_E_CONFIG);
    assert_text_has("does a file include itself");
    snprintf(line, sizeof(line), "@include \"%s\"", path);
    assert_status(read_with(*state, line), GMS_E_CONFIG);
    assert_text_has("one plain name relative");
    assert_status(read_with(*state, "@include \"*.cfg\""), GMS_E_CONFIG);
    assert_status(read_with(*state, "@include \"\""), GMS_E_CONFIG);
    assert_status(read_with(*state, "@include \".\""), GMS_E_CONFIG);
    assert_text_has("not a regular file");
    snprintf(path, sizeof(path), "%s/fifo", (char *)*state);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_status(read_with(*state, "@include \"fifo\""), GMS_E_CONFIG);
    assert_text_has("not a regular file");
    /* Not an include: in a comment, in a string, not at the start of a line. */
    assert_ok(read_with(*state, "# @include \"none.cfg\"\n/*\n@include \"none.cfg\"\n*/"));
    assert_ok(read_with(*state, "environment : { set = ( \"A=\n@include none.cfg\" ); };"));
    /* From memory there is nothing beside. */
    assert_refused("@include \"x.cfg\"\n", 1, "only a file can include");
    /* Wide and deep: each of ten files includes the next ten times. */
    for (int i = 0; i < 10; i++) {
        char body[600] = "";
        for (int j = 0; j < 10; j++)
            snprintf(body + strlen(body), sizeof(body) - strlen(body), "@include \"w%d.cfg\"\n", i + 1);
        snprintf(body + strlen(body), sizeof(body) - strlen(body), "# complete\n");
        snprintf(path, sizeof(path), "%s/w%d.cfg", (char *)*state, i);
        write_file(path, body, strlen(body));
    }
    assert_status(read_with(*state, "@include \"w0.cfg\""), GMS_E_CONFIG);
}

/* ------------------------------------------------------------------------------------------------ host (V41) ---- */

static void test_host_name(void **state)
{
    static const int lengths[] = {1, 40, 56, 57, 63, 64, 255, 4000};
    char name[4096];
    (void)state;
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        memset(name, 'h', sizeof(name));
        name[lengths[i]] = '\0';
        if (lengths[i] <= 56) {
            assert_ok(gms_config_check_host(name, &error));
        } else {
            assert_status(gms_config_check_host(name, &error), GMS_E_UNSUPPORTED);
            if (lengths[i] <= 64)
                assert_text_has("at most 56 bytes");
        }
    }
}

/* The real thing: a host with such a name. Exit code of the child: 0 as it should be, 1 not, 77 not permitted. */
static int host_of_length(int length)
{
    char name[128];
    struct gms_error child_error;
    memset(name, 'h', sizeof(name));
    if (unshare(CLONE_NEWUTS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0)
        return 77;
    if (sethostname(name, (size_t)length) != 0)
        return 77;
    return gms_config_check_host(NULL, &child_error) == (length <= 56 ? GMS_OK : GMS_E_UNSUPPORTED) ? 0 : 1;
}

static void test_host_name_of_machine(void **state)
{
    static const int lengths[] = {56, 57, 63, 64};
    (void)state;
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(host_of_length(lengths[i]));
        int status = unit_wait(pid);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77) {
            print_message("skipped: a host name of its own is not permitted here\n");
            skip();
        }
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_every_setting),
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
        cmocka_unit_test(test_shipped_files_cut),
        cmocka_unit_test(test_described_in_readme),
        cmocka_unit_test(test_broken_bytes),
        cmocka_unit_test_setup_teardown(test_read_from_files, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(test_include, unit_make_dir, unit_remove_dir),
        cmocka_unit_test_setup_teardown(test_include_refused, unit_make_dir, unit_remove_dir),
        cmocka_unit_test(test_host_name),
        cmocka_unit_test(test_host_name_of_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
