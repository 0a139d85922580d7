/* SPDX-License-Identifier: Apache-2.0
 *
 * The agreed environment from end to end under mpirun: what the deployment file and rank 0 say arrives in every engine
 * rank byte for byte (V43), a start has one port that no other has, and one odd rank, coordinator or engine, is refused
 * by name with both values before anything is allocated (V46's limits too).
 *
 * With an argument this program is an engine rank: `join` opens a session, joins, and says on stderr what came of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness.h"

enum { RANKS = 2, EXIT_CONFIG = 78, EXIT_MISMATCH = 3, LARGE = 32 * 1024 };

static struct cluster cluster;
static char self[512], log_path[128];

/* ------------------------------------------------------------------------------------------- an engine rank ---- */

static int join_and_tell(void)
{
    const struct gms_open_options options = {.rank = -1, .engine_id = -1};
    struct engine_rank rank = {.ranks = RANKS};
    struct gms_membership membership;
    struct gms_error error = {.status = GMS_OK};
    gms_session *session = NULL;
    gms_status status = gms_open(&options, &session, &error);
    if (status == GMS_OK)
        status = rank_join(session, &rank, &membership, &error);
    fprintf(stderr, "rank %s: %s: %s\n", getenv("GMS_RANK"), gms_status_name(status),
            status == GMS_OK ? "joined" : error.text);
    if (session != NULL)
        gms_close(session);
    return status == GMS_OK ? 0 : status == GMS_E_MISMATCH ? EXIT_MISMATCH : 1;
}

/* `script` is run by each rank's sh inside gms-exec. */
static int run_engine(uint32_t engine, const char *before, const char *script, const char *argument)
{
    char exec[512], number[16];
    snprintf(number, sizeof number, "%u", engine);
    char *words[] = {"mpirun",
                     "--oversubscribe",
                     "-n",
                     "2",
                     "sh",
                     "-c",
                     (char *)(uintptr_t)before,
                     (char *)(uintptr_t)program("gms-exec", exec),
                     "--run-dir",
                     cluster.run_dir,
                     "--engine",
                     number,
                     "--",
                     "sh",
                     "-c",
                     (char *)(uintptr_t)script,
                     (char *)(uintptr_t)argument,
                     NULL};
    return run_program(words, log_path);
}
#define PLAIN "exec \"$0\" \"$@\""

static bool said(const char *text)
{
    char line[8192];
    FILE *stream = fopen(log_path, "re");
    bool found = false;
    while (stream != NULL && !found && fgets(line, sizeof line, stream) != NULL)
        found = strstr(line, text) != NULL;
    if (stream != NULL)
        fclose(stream);
    return found;
}

static void show(void)
{
    char *words[] = {"cat", log_path, NULL};
    run_program(words, "/dev/stderr");
}

/* ------------------------------------------------------------------------------------------ byte for byte ------ */

static struct block {
    char *bytes;
    size_t length;
} blocks[RANKS];

static void load(struct block *block, const char *prefix, int rank)
{
    char path[160];
    snprintf(path, sizeof path, "%s.%d", prefix, rank);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    free(block->bytes);
    block->bytes = calloc(1, 1 << 20);
    assert_non_null(block->bytes);
    block->length = fread(block->bytes, 1, (1 << 20) - 1, file);
    fclose(file);
}

/* The value; NULL: not set. Fails when it is set twice. */
static const char *value_in(const struct block *block, const char *name)
{
    const char *found = NULL;
    for (size_t at = 0; at < block->length; at += strlen(block->bytes + at) + 1) {
        if (strncmp(block->bytes + at, name, strlen(name)) != 0 || block->bytes[at + strlen(name)] != '=')
            continue;
        assert_null(found);
        found = block->bytes + at + strlen(name) + 1;
    }
    return found;
}

static const char *const names[] = {"COMMA", "SPACE", "QUOTE", "DOLLAR", "NEWLINE", "EQUAL", "UTF8", "EMPTY", "RAW"};
static const char *const values[] = {"a,b,,c",
                                     " two  words ",
                                     "\"'`\\",
                                     "$HOME ${X} $(id) $",
                                     "x\ny\n",
                                     "=a=b=",
                                     "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
                                     "",
                                     "\x01\xff\xfe\t"};
enum { VALUES = sizeof values / sizeof values[0] };

static void test_byte_for_byte(void **state)
{
    static char group[256 * 1024], large[LARGE + 1], prefix[96], from_rank_0[96];
    (void)state;
    for (int i = 0; i < LARGE; i++)
        large[i] = (char)("ab,\" $='\n"[i % 9]);
    size_t used = (size_t)snprintf(group, sizeof group, "{ set = ( \"OF_RANK=r${rank}.${local_rank}\", \"LARGE=");
    for (int i = 0; i < LARGE; i++)
        used += (size_t)snprintf(group + used, sizeof group - used, "\\x%02x", (unsigned char)large[i]);
    used += (size_t)snprintf(group + used, sizeof group - used, "\"");
    for (int i = 0; i < VALUES; i++) {
        used += (size_t)snprintf(group + used, sizeof group - used, ", \"%s=", names[i]);
        for (const char *at = values[i]; *at != '\0'; at++)
            used += at[0] == '$' && at[1] == '{'
                        ? (size_t)snprintf(group + used, sizeof group - used, "$$")
                        : (size_t)snprintf(group + used, sizeof group - used, "\\x%02x", (unsigned char)*at);
        used += (size_t)snprintf(group + used, sizeof group - used, "\"");
    }
    snprintf(
        group + used, sizeof group - used,
        " ); engines = ( { engine = 1; set = ( \"COMMA=of engine ${engine}\" ); } ); ranks = ( { rank = 1; set = ( "
        "\"SPACE=of rank ${rank}\" ); } ); rename = ( \"COMM*=TLLM_COMM*\" ); }");

    /* What rank 0 was started with goes to all, through mpirun's own hands. */
    for (int i = 0; i < VALUES; i++) {
        snprintf(from_rank_0, sizeof from_rank_0, "GMS_%s", names[i]);
        setenv(from_rank_0, values[i], 1);
    }
    setenv("FAILOVER_LOCK_PATH", "/nowhere/a, b.lock", 1);
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .environment = group});
    for (int i = 0; i < VALUES; i++) {
        snprintf(from_rank_0, sizeof from_rank_0, "GMS_%s", names[i]);
        unsetenv(from_rank_0);
    }
    unsetenv("FAILOVER_LOCK_PATH");

    snprintf(log_path, sizeof log_path, "%s/engine.log", cluster.directory);
    snprintf(prefix, sizeof prefix, "%s/environ", cluster.directory);
    char ports[2][16] = {"", ""};
    for (uint32_t engine = 0; engine <= 1; engine++) {
        int code = run_engine(engine, PLAIN, "cat /proc/self/environ >\"$0.$GMS_RANK\"", prefix);
        if (code != 0)
            show();
        assert_int_equal(code, 0);
        for (int rank = 0; rank < RANKS; rank++) {
            char number[16];
            load(&blocks[rank], prefix, rank);
            for (int i = 0; i < VALUES; i++) {
                const char *expected = engine == 1 && strcmp(names[i], "COMMA") == 0 ? "of engine 1"
                                       : rank == 1 && strcmp(names[i], "SPACE") == 0 ? "of rank 1"
                                                                                     : values[i];
                const char *value = value_in(&blocks[rank], names[i]);
                assert_non_null(value);
                assert_string_equal(value, expected);
                snprintf(from_rank_0, sizeof from_rank_0, "GMS_%s", names[i]);
                value = value_in(&blocks[rank], from_rank_0);
                assert_non_null(value);
                assert_string_equal(value, values[i]);
            }
            assert_string_equal(value_in(&blocks[rank], "LARGE"), large);
            assert_string_equal(value_in(&blocks[rank], "FAILOVER_LOCK_PATH"), "/nowhere/a, b.lock");
            assert_string_equal(value_in(&blocks[rank], "OF_RANK"), rank == 0 ? "r0.0" : "r1.1");
            assert_string_equal(value_in(&blocks[rank], "TLLM_COMMA"), engine == 1 ? "of engine 1" : "a,b,,c");
            snprintf(number, sizeof number, "%d", rank);
            assert_string_equal(value_in(&blocks[rank], "RANK"), number);
            assert_string_equal(value_in(&blocks[rank], "LOCAL_RANK"), number);
            assert_string_equal(value_in(&blocks[rank], "WORLD_SIZE"), "2");
            assert_string_equal(value_in(&blocks[rank], "LOCAL_WORLD_SIZE"), "2");
            assert_string_equal(value_in(&blocks[rank], "MASTER_ADDR"), "127.0.0.1");
            assert_string_equal(value_in(&blocks[rank], "ENGINE_ID"), engine == 0 ? "0" : "1");
            /* Its own launcher's, never the coordinators'. */
            assert_string_equal(value_in(&blocks[rank], "OMPI_COMM_WORLD_RANK"), number);
        }
        assert_string_equal(value_in(&blocks[0], "MASTER_PORT"), value_in(&blocks[1], "MASTER_PORT"));
        snprintf(ports[engine], sizeof ports[engine], "%s", value_in(&blocks[0], "MASTER_PORT"));
        assert_string_equal(value_in(&blocks[0], "PMIX_NAMESPACE"), value_in(&blocks[1], "PMIX_NAMESPACE"));
    }
    assert_string_not_equal(ports[0], ports[1]);
    assert_true(cluster_log_count(&cluster, "GMS_COMMA is handed on to all engine ranks") == 1);
    cluster_stop(&cluster);
    for (int rank = 0; rank < RANKS; rank++) {
        free(blocks[rank].bytes);
        blocks[rank].bytes = NULL;
    }
}

/* --------------------------------------------------------------------------------------------- odd ranks ------- */

/* A coordinator that was started with something else: all stop, within seconds, one says what. */
static void test_odd_coordinator(void **state)
{
    static const struct {
        const char *odd, *reason; /* NULL: it starts */
    } cases[] = {
        {"export GMS_X=b", "GMS_X is \"a\" on rank 0, \"b\" on rank 1"},
        {"export GMS_X=", "GMS_X is \"a\" on rank 0, \"\" on rank 1"},
        {"export GMS_Y=1", "GMS_Y is unset on rank 0, \"1\" on rank 1"},
        {"export FAILOVER_LOCK_PATH=/other", "FAILOVER_LOCK_PATH is \"/lock\" on rank 0, \"/other\" on rank 1"},
    };
    char coordinator[512];
    (void)state;
    setenv("GMS_X", "a", 1);
    setenv("FAILOVER_LOCK_PATH", "/lock", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char script[256];
        cluster_prepare(&cluster, &(struct cluster_options){.ranks = RANKS}, true);
        snprintf(script, sizeof script, "[ $OMPI_COMM_WORLD_RANK = 0 ] || %s; exec \"$0\" \"$@\"", cases[i].odd);
        char *words[] = {"mpirun",   "--oversubscribe",
                         "-n",       "2",
                         "sh",       "-c",
                         script,     (char *)(uintptr_t)program("gms-coord", coordinator),
                         "--config", cluster.config,
                         NULL};
        int code = run_program(words, cluster.log);
        if (code != EXIT_CONFIG || cluster_log_count(&cluster, cases[i].reason) != 1) {
            char *cat[] = {"cat", cluster.log, NULL};
            run_program(cat, "/dev/stderr");
            fail_msg("exit %d; wanted once: %s", code, cases[i].reason);
        }
        cluster_discard(&cluster);
    }
    unsetenv("GMS_X");
    unsetenv("FAILOVER_LOCK_PATH");
}

static void test_odd_engine_rank(void **state)
{
    static const struct {
        const char *odd;        /* done by rank 1, in gms-exec or before it */
        const char *reasons[2]; /* NULL: it joins */
        bool before;
    } cases[] = {
        {"true", {NULL}, false},
        {"unset FAILOVER_LOCK_PATH", {"FAILOVER_LOCK_PATH is \"", "\" on rank 0, unset on rank 1"}, false},
        {"FAILOVER_LOCK_PATH=/other", {"/lock\" on rank 0, \"/other\" on rank 1", ""}, false},
        {"FAILOVER_LOCK_PATH=$FAILOVER_LOCK_PATH.link", {"/lock\" on rank 0, \"", "/lock.link\" on rank 1"}, false},
        {"unshare -m true && exec unshare -m sh -c 'mount --bind /etc/passwd $FAILOVER_LOCK_PATH; exec $0 join' \"$0\"",
         {"(file of FAILOVER_LOCK_PATH) is \"device ", "on rank 1"},
         false}, /* the same name, another file */
        {"SHARED=x", {"SHARED is \"a b\" on rank 0, \"x\" on rank 1", ""}, false},
        {"unset SHARED", {"SHARED is \"a b\" on rank 0, unset on rank 1", ""}, false},
        {"export GMS_ODD=1", {"GMS_ODD is unset on rank 0, \"1\" on rank 1", ""}, false},
        {"MASTER_PORT=1", {"MASTER_PORT is \"2", "\" on rank 0, \"1\" on rank 1"}, false},
        {"ulimit -l 64", {"(ulimit -l) is \"", "\" on rank 0, \"64 KiB\" on rank 1"}, false},
        {"OF_RANK=anything", {NULL}, false}, /* it differs anyway */
        {"UNRELATED=1", {NULL}, false},
        /* Before gms-exec: the group's values go over a rank's own. */
        {"export FAILOVER_LOCK_PATH=/other SHARED=x", {NULL}, true},
        {"export GMS_ODD=1", {"GMS_ODD is unset on rank 0, \"1\" on rank 1", ""}, true},
    };
    char path[128], link[128];
    (void)state;
    char directory[] = "/tmp/gms-env-XXXXXX";
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/lock", directory);
    snprintf(link, sizeof link, "%s/lock.link", directory);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(symlink(path, link), 0);
    setenv("FAILOVER_LOCK_PATH", path, 1);
    cluster_start(&cluster, &(struct cluster_options){
                                .ranks = RANKS, .environment = "{ set = ( \"SHARED=a b\", \"OF_RANK=${rank}\" ); }"});
    unsetenv("FAILOVER_LOCK_PATH");
    snprintf(log_path, sizeof log_path, "%s/engine.log", cluster.directory);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char before[256], script[256];
        char *mounts[] = {"unshare", "-m", "true", NULL};
        if (strstr(cases[i].odd, "unshare") != NULL && run_program(mounts, "/dev/null") != 0) {
            print_message("skipped: no mount namespace can be made here\n");
            continue;
        }
        snprintf(before, sizeof before, "[ $OMPI_COMM_WORLD_RANK = 0 ] || { %s; }; exec \"$0\" \"$@\"",
                 cases[i].before ? cases[i].odd : "true");
        snprintf(script, sizeof script, "[ $GMS_RANK = 0 ] || { %s; }; exec \"$0\" join",
                 cases[i].before ? "true" : cases[i].odd);
        int code = run_engine(0, before, script, self);
        bool admitted = cases[i].reasons[0] == NULL;
        if (code != (admitted ? 0 : EXIT_MISMATCH) ||
            (!admitted && (!said(cases[i].reasons[0]) || !said(cases[i].reasons[1])))) {
            show();
            fail_msg("%s: exit %d", cases[i].odd, code);
        }
        if (!admitted) { /* the same words on both ranks */
            assert_true(said("rank 0: MISMATCH") || said("rank 0: GMS_E_MISMATCH"));
            assert_true(said("rank 1: MISMATCH") || said("rank 1: GMS_E_MISMATCH"));
        }
        assert_int_equal(cluster_number(&cluster, 0, "used_bytes"), 0);
    }
    cluster_stop(&cluster);
    unlink(link);
    unlink(path);
    rmdir(directory);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "join") == 0)
        return join_and_tell();
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_for_byte),
        cmocka_unit_test(test_odd_coordinator),
        cmocka_unit_test(test_odd_engine_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
