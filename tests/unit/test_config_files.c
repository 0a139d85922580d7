/* SPDX-License-Identifier: Apache-2.0
 *
 * Deployment files that were damaged, cut, or include others; and hosts on which MPI cannot start. Reported faults V38
 * and V41.
 */
#include "config_support.h"

static struct gms_config other;

#include <glob.h>
#include <sched.h>

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
