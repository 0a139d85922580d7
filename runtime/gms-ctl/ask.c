/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/run_dir.h"
#include "base/units.h"
#include "gms-ctl/commands.h"
#include "gms-ctl/control.h"
#include "gms-ctl/table.h"
#include "gms-ctl/upkeep_lock.h"

enum { UPKEEP_BYTES = 512 };

int gms_ctl_exit_code(gms_status status)
{
    return status == GMS_E_NOT_FOUND || status == GMS_E_TIMEOUT || status == GMS_E_DISCONNECTED ? GMS_CTL_UNREACHABLE
                                                                                                : GMS_CTL_REFUSED;
}

int gms_ctl_complain(gms_status status, const struct gms_error *error)
{
    gms_log(GMS_LOG_ERROR, "%s", error->text);
    return gms_ctl_exit_code(status);
}

gms_status gms_ctl_pick_ranks(const struct gms_ctl_options *options, uint32_t **ret_ranks, size_t *ret_count,
                              struct gms_error *ret_error)
{
    if (options->rank < 0) {
        return gms_control_find_ranks(options->run_dir, ret_ranks, ret_count, ret_error);
    }
    *ret_ranks = malloc(sizeof **ret_ranks);
    if (*ret_ranks == NULL) {
        return gms_fail(ret_error, GMS_E_NO_MEMORY, "out of memory");
    }
    **ret_ranks = (uint32_t)options->rank;
    *ret_count = 1;
    return GMS_OK;
}

/* -------------------------------------------------------------------------------------------------- status ---- */

static void write_json(const struct gms_ctl_options *options, const struct gms_answers *answers)
{
    if (options->rank >= 0) {
        if (answers->items[0].raw != NULL) {
            printf("%s\n", answers->items[0].raw);
        }
        return;
    }
    printf("[");
    for (size_t i = 0; i < answers->count; i++) {
        const struct gms_answer *answer = &answers->items[i];

        printf("%s", i == 0 ? "" : ",\n ");
        if (answer->document != NULL) {
            fputs(answer->raw, stdout);
        } else {
            json_t *gone = json_pack("{s:I,s:s}", "rank", (json_int_t)answer->rank, "unreachable", answer->error.text);
            char *text = gone == NULL ? NULL : json_dumps(gone, JSON_COMPACT);

            printf("%s", text != NULL ? text : "null");
            free(text);
            json_decref(gone);
        }
    }
    printf("]\n");
}

/* What gms-up wrote about engines that do not start; "" for nothing. */
static void read_upkeep(const struct gms_ctl_options *options, char ret_text[UPKEEP_BYTES])
{
    char path[GMS_RUN_PATH_BYTES];
    int fd = -1;
    ssize_t length = 0;

    if (gms_run_dir_path(options->run_dir, "upkeep", -1, path, NULL) == GMS_OK) {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    }
    if (fd >= 0) {
        length = read(fd, ret_text, UPKEEP_BYTES - 1);
        gms_fd_close(&fd);
    }
    ret_text[length > 0 ? length : 0] = '\0';
}

static void write_table(const struct gms_ctl_options *options, const struct gms_answers *answers, bool color)
{
    struct gms_rank_status *rows = calloc(answers->count, sizeof *rows);
    char upkeep[UPKEEP_BYTES];

    if (rows == NULL) {
        gms_log(GMS_LOG_ERROR, "no memory for %zu ranks", answers->count);
        return;
    }
    for (size_t i = 0; i < answers->count; i++) {
        const struct gms_answer *answer = &answers->items[i];

        rows[i] =
            (struct gms_rank_status){.rank = answer->rank, .document = answer->document, .why = answer->error.text};
    }
    read_upkeep(options, upkeep);
    gms_table_write(stdout, rows, answers->count, upkeep, color);
    free(rows);
}

static int show_status(const struct gms_ctl_options *options, bool color)
{
    struct gms_error error;
    struct gms_answers answers;
    int exit_code = 0;
    gms_status status =
        gms_answers_collect(options->run_dir, options->rank, gms_ctl_timeout(options, 5), &answers, &error);

    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    for (size_t i = 0; i < answers.count; i++) {
        const struct gms_answer *answer = &answers.items[i];

        if (answer->document == NULL) {
            exit_code = gms_ctl_exit_code(answer->status) > exit_code ? gms_ctl_exit_code(answer->status) : exit_code;
            if (options->json) {
                gms_log(GMS_LOG_ERROR, "rank %u: %s", answer->rank, answer->error.text);
            }
        }
    }
    if (options->json) {
        write_json(options, &answers);
    } else {
        write_table(options, &answers, color);
    }
    gms_answers_free(&answers);
    return exit_code;
}

int gms_ctl_status(const struct gms_ctl_options *options)
{
    bool terminal = isatty(STDOUT_FILENO);
    int exit_code;

    for (;;) {
        uint64_t next_ns = gms_clock_ns() + options->watch_ns;

        if (options->watch_ns != 0 && terminal && !options->json) {
            printf("\033[H\033[2J");
        }
        exit_code = show_status(options, terminal);
        if (options->watch_ns != 0 && !terminal && !options->json) {
            printf("\n");
        }
        if (fflush(stdout) != 0) {
            gms_log(GMS_LOG_ERROR, "cannot write the status: %s", strerror(errno));
            return GMS_CTL_REFUSED;
        }
        if (options->watch_ns == 0) {
            return exit_code;
        }
        poll(NULL, 0, gms_clock_poll_ms(next_ns));
    }
}

/* ---------------------------------------------------------------------------------------------------- wait ---- */

static bool anybody_answers(const struct gms_answers *answers)
{
    for (size_t i = 0; i < answers->count; i++) {
        if (answers->items[i].document != NULL) {
            return true;
        }
    }
    return false;
}

/* Asks ten times a second; says what it waits for after a second, when that changes, and else ever more rarely. Ends
 * early where nobody answers and the gms-up that would start somebody has ended meanwhile. */
int gms_ctl_wait(const struct gms_ctl_options *options, enum gms_goal goal)
{
    uint64_t started_ns = gms_clock_ns(), deadline_ns = started_ns + gms_ctl_timeout(options, 60);
    uint64_t pause_ns = GMS_NS_PER_S, say_ns = started_ns + pause_ns;
    char missing[GMS_MISSING_BYTES], said[GMS_MISSING_BYTES] = "", waited[64];
    struct gms_upkeep_lock upkeep;
    struct gms_error path_error;
    gms_status opened = gms_upkeep_lock_open(&upkeep, options->run_dir, &path_error);

    if (opened != GMS_OK) {
        return gms_ctl_complain(opened, &path_error);
    }
    for (;;) {
        uint64_t now_ns = gms_clock_ns(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : GMS_NS_PER_MS;
        struct gms_answers answers = {0};
        struct gms_error error;
        int reached = 0;
        bool answered = false;
        gms_status status = gms_answers_collect(
            options->run_dir, -1, left_ns < 5 * GMS_NS_PER_S ? left_ns : 5 * GMS_NS_PER_S, &answers, &error);

        if (status == GMS_OK) {
            reached = gms_answers_reach(&answers, goal, missing);
            answered = anybody_answers(&answers);
            gms_answers_free(&answers);
        } else if (status == GMS_E_NOT_FOUND) { /* not yet */
            snprintf(missing, sizeof missing, "%s", error.text);
        } else {
            return gms_ctl_complain(status, &error);
        }
        now_ns = gms_clock_ns();
        gms_format_duration(now_ns - started_ns, waited, sizeof waited);
        if (reached) {
            printf("%s\n", missing);
            return 0;
        }
        if (gms_upkeep_lock_look(&upkeep, now_ns) && !answered) {
            gms_log(GMS_LOG_ERROR,
                    "gms-up has ended, and no coordinator answers in %.200s: nobody will start one; gms-up's log and "
                    "exit status say why (%s)",
                    options->run_dir, missing);
            return GMS_CTL_UNREACHABLE;
        }
        if (now_ns >= deadline_ns) {
            gms_log(GMS_LOG_ERROR, "not reached within %s: %s", waited, missing);
            return GMS_CTL_REFUSED;
        }
        if (now_ns >= say_ns || (said[0] != '\0' && strcmp(said, missing) != 0)) {
            fprintf(stderr, "gms-ctl: waiting (%s): %s\n", waited, missing);
            memcpy(said, missing, sizeof said);
            say_ns = now_ns + pause_ns;
            pause_ns = pause_ns < 8 * GMS_NS_PER_S ? 2 * pause_ns : 10 * GMS_NS_PER_S;
        }
        now_ns += 100 * GMS_NS_PER_MS;
        poll(NULL, 0, gms_clock_poll_ms(now_ns < deadline_ns ? now_ns : deadline_ns));
    }
}

/* ------------------------------------------------------------------------------------------------- serving ---- */

int gms_ctl_serving(const struct gms_ctl_options *options)
{
    char path[GMS_RUN_PATH_BYTES];
    struct gms_error error;
    json_error_t where;
    json_t *record;
    const char *endpoint;
    int exit_code = 0;
    gms_status status = gms_run_dir_path(options->run_dir, "serving", -1, path, &error);

    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    record = json_load_file(path, 0, &where);
    if (record == NULL) {
        if (access(path, F_OK) != 0 && errno == ENOENT) {
            gms_log(GMS_LOG_ERROR, "nobody has served yet: there is no %s", path);
        } else {
            gms_log(GMS_LOG_ERROR, "%s cannot be read: %s", path, where.text);
        }
        return GMS_CTL_REFUSED;
    }
    endpoint = json_string_value(json_object_get(record, "endpoint"));
    if (options->json) {
        json_dumpf(record, stdout, JSON_COMPACT);
        printf("\n");
    } else if (endpoint != NULL && *endpoint != '\0') {
        printf("%s\n", endpoint);
    } else {
        gms_log(GMS_LOG_ERROR, "nobody serves now (%s names no endpoint)", path);
        exit_code = GMS_CTL_REFUSED;
    }
    json_decref(record);
    return exit_code;
}

/* ------------------------------------------------------------------------------------------- env and log ----- */

/* One rank's list, a line each. */
static void write_variables(uint32_t rank, const struct gms_bytes *variables)
{
    const char *bytes = variables->data;

    printf("# rank %u\n", rank);
    for (size_t i = 0; i < variables->length; i++) {
        unsigned char byte = (unsigned char)bytes[i];

        if (byte == '\0') {
            putchar('\n');
        } else if (byte < 0x20 || byte == 0x7f || byte == '\\') {
            printf("\\x%02x", byte);
        } else {
            putchar(byte);
        }
    }
}

int gms_ctl_env(const struct gms_ctl_options *options, uint32_t engine)
{
    struct gms_error error;
    uint32_t *ranks;
    size_t count;
    int exit_code = 0;
    gms_status status = gms_ctl_pick_ranks(options, &ranks, &count, &error);

    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    for (size_t i = 0; i < count; i++) {
        struct gms_message request = {.type = GMS_MESSAGE_ENVIRONMENT, .plain.incarnation = engine}, reply;
        struct gms_control control;

        status = gms_control_open(options->run_dir, ranks[i], gms_ctl_timeout(options, 5), &control, &error);
        if (status == GMS_OK) {
            status = gms_control_ask(&control, &request, GMS_MESSAGE_ENVIRONMENT_REPLY, gms_ctl_timeout(options, 5),
                                     &reply, &error);
            if (status == GMS_OK) {
                write_variables(ranks[i], &reply.environment_reply.variables);
            }
            gms_control_close(&control);
        }
        if (status != GMS_OK) {
            exit_code = gms_ctl_complain(status, &error);
        }
    }
    free(ranks);
    return exit_code;
}

int gms_ctl_log(const struct gms_ctl_options *options, uint32_t engine)
{
    enum { TAIL_BYTES = 64 * 1024 };
    static char tail[TAIL_BYTES];
    char path[GMS_RUN_PATH_BYTES], name[32];
    struct gms_error error;
    ssize_t length;
    off_t end;
    int fd;
    gms_status status;

    snprintf(name, sizeof name, "engine.%u.log", engine);
    status = gms_run_dir_path(options->run_dir, name, -1, path, &error);
    if (status != GMS_OK) {
        return gms_ctl_complain(status, &error);
    }
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        gms_log(GMS_LOG_ERROR, "%s: %s; engines that gms-up did not start have their output elsewhere", path,
                strerror(errno));
        return GMS_CTL_REFUSED;
    }
    end = lseek(fd, 0, SEEK_END);
    length = pread(fd, tail, sizeof tail, end > TAIL_BYTES ? end - TAIL_BYTES : 0);
    gms_fd_close(&fd);
    if (length > 0) {
        fwrite(tail, 1, (size_t)length, stdout);
    }
    return 0;
}
