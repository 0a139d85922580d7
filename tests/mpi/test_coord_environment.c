/* SPDX-License-Identifier: Apache-2.0
 *
 * The agreed environment from end to end under mpirun: what the deployment file and rank 0 say arrives in every engine
 * rank byte for byte (V43), a start has one port that no other has, and one odd rank, coordinator or engine, is refused
 * by name with both values before anything is allocated (V46's limits too).
 *
 * With an argument this program is an engine rank: `join` opens a session, joins, and says on stderr what came of it.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
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
static pid_t start_engine(uint32_t engine, const char *before, const char *script, const char *argument,
                          const char *log, int *ret_pidfd)
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
    return start_program(words, log, ret_pidfd);
}
#define PLAIN "exec \"$0\" \"$@\""

static bool has_ended(void *context)
{
    return gms_pidfd_ended(*(int *)context);
}

/* Its exit code; killed at the deadline. */
static int wait_program(pid_t pid, int pidfd)
{
    int status = 0;
    if (!eventually(has_ended, &pidfd, HARNESS_DEADLINE_MS))
        gms_pidfd_signal(pidfd, SIGKILL);
    gms_fd_close(&pidfd);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool said(const char *log, const char *text)
{
    char line[8192];
    FILE *stream = fopen(log, "re");
    bool found = false;
    while (stream != NULL && !found && fgets(line, sizeof line, stream) != NULL)
        found = strstr(line, text) != NULL;
    if (stream != NULL)
        fclose(stream);
    return found;
}

static void show(const char *log)
{
    char *words[] = {"cat", (char *)(uintptr_t)log, NULL};
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
        "\"SPACE=of rank ${rank}\" ); } ); rename = ( \"COMM*=TLLM_COMM*\", \"GMS_*=TLLM_GMS_*\" ); }");

    /* What rank 0 was started with goes to all, through mpirun's own hands. */
    for (int i = 0; i < VALUES; i++) {
        snprintf(from_rank_0, sizeof from_rank_0, "GMS_%s", names[i]);
        setenv(from_rank_0, values[i], 1);
    }
    setenv("FAILOVER_LOCK_PATH", "/nowhere/a, b.lock", 1);
    /* To rank 1 the launcher forwards some of them only under the deployment's other prefix. */
    const char *script = "[ $OMPI_COMM_WORLD_RANK = 0 ] || { export TLLM_GMS_NEWLINE=\"$GMS_NEWLINE\" "
                         "TLLM_GMS_EMPTY=\"$GMS_EMPTY\"; unset GMS_NEWLINE GMS_EMPTY; }; log=$1; shift; "
                         "exec \"$0\" \"$@\" >>\"$log\" 2>&1";
    cluster_start(&cluster, &(struct cluster_options){.ranks = RANKS, .environment = group, .script = script});
    for (int i = 0; i < VALUES; i++) {
        snprintf(from_rank_0, sizeof from_rank_0, "GMS_%s", names[i]);
        unsetenv(from_rank_0);
    }
    unsetenv("FAILOVER_LOCK_PATH");

    snprintf(log_path, sizeof log_path, "%s/engine.log", cluster.directory);
    snprintf(prefix, sizeof prefix, "%s/environ", cluster.directory);
    char ports[2][16] = {"", ""};
    for (uint32_t engine = 0; engine <= 1; engine++) {
        int pidfd = -1;
        pid_t pid = start_engine(engine, PLAIN, "cat /proc/self/environ >\"$0.$GMS_RANK\"", prefix, log_path, &pidfd);
        int code = wait_program(pid, pidfd);
        if (code != 0)
            show(log_path);
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

static char directory[64], lock[96], lock_link[96];

/* A lock file and a symbolic link to it. */
static void make_lock(void)
{
    snprintf(directory, sizeof directory, "/tmp/gms-env-XXXXXX");
    assert_non_null(mkdtemp(directory));
    snprintf(lock, sizeof lock, "%s/lock", directory);
    snprintf(lock_link, sizeof lock_link, "%s/lock.link", directory);
    FILE *file = fopen(lock, "we");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(symlink(lock, lock_link), 0);
}

static void remove_lock(void)
{
    unlink(lock_link);
    unlink(lock);
    rmdir(directory);
}

static bool mounts_possible(void)
{
    char *words[] = {"unshare", "-m", "true", NULL};
    bool possible = run_program(words, "/dev/null") == 0;
    if (!possible)
        print_message("skipped: no mount namespace can be made here\n");
    return possible;
}

/* A coordinator that was started with something else: all stop, within seconds, one says what. */
static void test_odd_coordinator(void **state)
{
    static const struct {
        const char *odd, *reasons[2];
    } cases[] = {
        {"export GMS_X=b", {"GMS_X is \"a\" on rank 0, \"b\" on rank 1", ""}},
        {"export GMS_X=", {"GMS_X is \"a\" on rank 0, \"\" on rank 1", ""}},
        {"unset GMS_X", {"GMS_X is \"a\" on rank 0, unset on rank 1", "mpirun -x NAME"}},
        {"export GMS_Y=1", {"GMS_Y is unset on rank 0, \"1\" on rank 1", ""}},
        {"unset GMS_X; export TLLM_GMS_X=b",
         {"GMS_X is \"a\" on rank 0, \"b\" on rank 1", ""}},   /* by environment.rename */
        {"exec \"$GMS_BIN/tests/mpi/gms-coord-other\" \"$@\"", /* another version */
         {"is gms-coord 0.0.0-other (protocol ", ", rank 0 is gms-coord "}},
        {"unset FAILOVER_LOCK_PATH", {"FAILOVER_LOCK_PATH is \"", "\" on rank 0, unset on rank 1"}},
        {"export FAILOVER_LOCK_PATH=/other", {"/lock\" on rank 0, \"/other\" on rank 1", ""}},
        {"export FAILOVER_LOCK_PATH=$FAILOVER_LOCK_PATH.link", {"/lock\" on rank 0, \"", "/lock.link\" on rank 1"}},
        {"unshare -m true && exec unshare -m sh -c 'mount --bind /etc/passwd $FAILOVER_LOCK_PATH; exec \"$0\" \"$@\"' "
         "\"$0\" \"$@\"",
         {"(file of FAILOVER_LOCK_PATH) is \"device ", "on rank 1"}}, /* the same name, another file */
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    static struct cluster clusters[CASES];
    pid_t pids[CASES];
    int pidfds[CASES];
    char coordinator[512];
    const struct cluster_options options = {.ranks = RANKS, .environment = "{ rename = ( \"GMS_*=TLLM_GMS_*\" ); }"};
    (void)state;
    make_lock();
    setenv("GMS_X", "a", 1);
    setenv("FAILOVER_LOCK_PATH", lock, 1);
    for (size_t i = 0; i < CASES; i++) { /* a refused start is mostly waited for */
        char script[512];
        cluster_prepare(&clusters[i], &options, true);
        snprintf(script, sizeof script, "[ $OMPI_COMM_WORLD_RANK = 0 ] || { %s; }; exec \"$0\" \"$@\"", cases[i].odd);
        char *words[] = {"mpirun",   "--oversubscribe",
                         "-n",       "2",
                         "sh",       "-c",
                         script,     (char *)(uintptr_t)program("gms-coord", coordinator),
                         "--config", clusters[i].config,
                         NULL};
        pids[i] = start_program(words, clusters[i].log, &pidfds[i]);
    }
    unsetenv("GMS_X");
    unsetenv("FAILOVER_LOCK_PATH");
    for (size_t i = 0; i < CASES; i++) {
        int code = wait_program(pids[i], pidfds[i]);
        if (strstr(cases[i].odd, "unshare") != NULL && !mounts_possible())
            continue;
        if (code != EXIT_CONFIG || cluster_log_count(&clusters[i], cases[i].reasons[0]) != 1 ||
            !cluster_log_has(&clusters[i], cases[i].reasons[1])) {
            cluster_show_log(&clusters[i]);
            fail_msg("%s: exit %d; wanted once: %s", cases[i].odd, code, cases[i].reasons[0]);
        }
    }
    for (size_t i = 0; i < CASES; i++)
        cluster_discard(&clusters[i]);
    remove_lock();
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
    enum { CASES = sizeof cases / sizeof cases[0], AT_ONCE = 7 };
    (void)state;
    make_lock();
    setenv("FAILOVER_LOCK_PATH", lock, 1);
    cluster_start(&cluster, &(struct cluster_options){
                                .ranks = RANKS, .environment = "{ set = ( \"SHARED=a b\", \"OF_RANK=${rank}\" ); }"});
    unsetenv("FAILOVER_LOCK_PATH");
    for (size_t first = 0; first < CASES; first += AT_ONCE) { /* each as an engine of its own */
        size_t count = CASES - first < AT_ONCE ? CASES - first : AT_ONCE;
        char logs[AT_ONCE][160];
        pid_t pids[AT_ONCE];
        int pidfds[AT_ONCE];
        for (size_t i = 0; i < count; i++) {
            const char *odd = cases[first + i].odd;
            char before[256], script[256];
            snprintf(logs[i], sizeof logs[i], "%s/engine.%zu.log", cluster.directory, first + i);
            snprintf(before, sizeof before, "[ $OMPI_COMM_WORLD_RANK = 0 ] || { %s; }; exec \"$0\" \"$@\"",
                     cases[first + i].before ? odd : "true");
            snprintf(script, sizeof script, "[ $GMS_RANK = 0 ] || { %s; }; exec \"$0\" join",
                     cases[first + i].before ? "true" : odd);
            pids[i] = start_engine((uint32_t)i, before, script, self, logs[i], &pidfds[i]);
        }
        for (size_t i = 0; i < count; i++) {
            int code = wait_program(pids[i], pidfds[i]);
            const char *const *reasons = cases[first + i].reasons;
            if (strstr(cases[first + i].odd, "unshare") != NULL && !mounts_possible())
                continue;
            bool admitted = reasons[0] == NULL;
            if (code != (admitted ? 0 : EXIT_MISMATCH) ||
                (!admitted && (!said(logs[i], reasons[0]) || !said(logs[i], reasons[1])))) {
                show(logs[i]);
                fail_msg("%s: exit %d", cases[first + i].odd, code);
            }
            if (!admitted) { /* the same words on both ranks */
                assert_true(said(logs[i], "rank 0: MISMATCH") || said(logs[i], "rank 0: GMS_E_MISMATCH"));
                assert_true(said(logs[i], "rank 1: MISMATCH") || said(logs[i], "rank 1: GMS_E_MISMATCH"));
            }
        }
        assert_int_equal(cluster_number(&cluster, 0, "used_bytes"), 0);
    }
    cluster_stop(&cluster);
    remove_lock();
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
