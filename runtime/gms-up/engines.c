/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-up/engines.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "config/environment.h"

static const uint64_t pauses_ns[] = {
    0, GMS_NS_PER_S, 2 * GMS_NS_PER_S, 5 * GMS_NS_PER_S, 10 * GMS_NS_PER_S, 30 * GMS_NS_PER_S};
enum { PAUSES = sizeof pauses_ns / sizeof pauses_ns[0], LAST_LINES = 5, TAIL_BYTES = 8192 };
/* While something is missing, and while nothing is: engines of other people end without telling us. */
static const uint64_t ask_soon_ns = 100 * GMS_NS_PER_MS, ask_later_ns = GMS_NS_PER_S;
static const uint64_t clean_up_ns = 15 * GMS_NS_PER_S; /* of a launcher whose engine is gone from the group */
static const uint64_t between_starts_ns = 200 * GMS_NS_PER_MS;

bool gms_up_engines_wanted(const struct gms_up_engines *engines)
{
    return engines->config->launch_engines_bytes > 0;
}

gms_status gms_up_engines_open(struct gms_up_engines *engines, const struct gms_up_options *options,
                               const struct gms_config *config, struct gms_error *ret_error)
{
    memset(engines, 0, sizeof *engines);
    engines->options = options;
    engines->config = config;
    memset(engines->roles, ' ', sizeof engines->roles);
    engines->lacking_ns = gms_clock_ns();
    gms_status status = gms_run_dir_path(config->run_dir, "upkeep", -1, engines->upkeep, ret_error);
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++) {
        struct gms_up_engine *engine = &engines->engines[id];
        char name[16];
        snprintf(name, sizeof name, "engine%u", id);
        if (status == GMS_OK)
            status = gms_up_job_open(&engine->job, config->run_dir, name, ret_error);
        snprintf(engine->output, sizeof engine->output, "%s/engine.%u.log", config->run_dir, id);
    }
    return status;
}

void gms_up_engines_close(struct gms_up_engines *engines)
{
    for (uint32_t id = 0; engines->config != NULL && id < GMS_MAX_ENGINES; id++)
        gms_up_job_close(&engines->engines[id].job);
}

static void enter(struct gms_up_engine *engine, enum gms_up_phase phase, uint64_t now_ns)
{
    engine->phase = phase;
    engine->since_ns = engine->awaited_ns = now_ns;
}

uint32_t gms_up_engines_adopt(struct gms_up_engines *engines)
{
    uint32_t count = 0;
    for (uint32_t id = 0; gms_up_engines_wanted(engines) && id < GMS_MAX_ENGINES; id++) {
        if (!gms_up_job_adopt(&engines->engines[id].job))
            continue;
        enter(&engines->engines[id], GMS_UP_STARTING, gms_clock_ns()); /* the group knows better, and is asked */
        count++;
    }
    return count;
}

/* -------------------------------------------------------------------------------------------- the group ------- */

static bool in_group(char role)
{
    return role == 'j' || role == 'p' || role == 'r' || role == 's';
}

static uint32_t count_role(const struct gms_up_engines *engines, const char *roles)
{
    uint32_t count = 0;
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++)
        count += strchr(roles, engines->roles[id]) != NULL;
    return count;
}

/* Says so when the group begins or ceases to be as the file wants it, with how long it was not. */
static void tell_readiness(struct gms_up_engines *engines, uint64_t now_ns)
{
    uint32_t parked = count_role(engines, "p"), wanted = engines->config->standby_count;
    bool serves = count_role(engines, "s") > 0, ready = serves && parked >= wanted;
    if (ready && !engines->was_ready) {
        gms_log(GMS_LOG_NOTICE, "one engine serves, %u parked; ready %llu ms after it was not", parked,
                (unsigned long long)((now_ns - engines->lacking_ns) / GMS_NS_PER_MS));
        unlink(engines->upkeep);
        engines->failures = 0;
    } else if (!ready && engines->was_ready) {
        engines->lacking_ns = now_ns;
        if (!serves)
            gms_log(GMS_LOG_WARNING, "no engine serves at present; %u parked", parked);
        else
            gms_log(GMS_LOG_WARNING, "%u of %u shadows are parked%s", parked, wanted,
                    parked == 0 ? ": the next fault ends the service until one is" : "");
    }
    engines->was_ready = ready;
}

/* What a document says of one engine number. */
struct said {
    char role;            /* as gms_up_engines.roles */
    uint64_t incarnation; /* 0: nobody has the number */
};

/* False: this is no status document, or one that does not say of each engine which it is and how it is. */
static bool read_engines(const char *status, struct said ret_said[GMS_MAX_ENGINES])
{
    static const char *const names[] = {"joined", "parked", "promoted", "serving", "condemned"};
    enum { NAMES = sizeof names / sizeof names[0] };
    json_t *document = json_loads(status, 0, NULL);
    json_t *list = json_object_get(document, "engines"), *item;
    bool clear = json_is_array(list);
    size_t index;
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++)
        ret_said[id] = (struct said){.role = ' '};
    json_array_foreach(list, index, item)
    {
        json_int_t id = json_integer_value(json_object_get(item, "engine"));
        json_int_t incarnation = json_integer_value(json_object_get(item, "incarnation"));
        const char *role = json_string_value(json_object_get(item, "role"));
        size_t i = 0;
        while (role != NULL && i < NAMES && strcmp(role, names[i]) != 0)
            i++;
        clear = clear && role != NULL && i < NAMES && json_is_integer(json_object_get(item, "engine")) && id >= 0 &&
                id < GMS_MAX_ENGINES && incarnation > 0;
        if (!clear)
            break;
        ret_said[id] = (struct said){.role = "jprsc"[i], .incarnation = (uint64_t)incarnation};
    }
    json_decref(document);
    return clear;
}

/* What a document says of an engine of ours. Who else has its number is not it. */
enum standing { ABSENT, COMING, SETTLED, CONDEMNED, STANDINGS };

static enum standing standing_of(const struct gms_up_engine *engine, const struct said *said)
{
    if (said->incarnation == 0 || (engine->incarnation != 0 && engine->incarnation != said->incarnation))
        return ABSENT;
    return said->role == 'c' ? CONDEMNED : said->role == 'p' || said->role == 's' ? SETTLED : COMING;
}

static const enum gms_up_phase phase_next[GMS_UP_PHASES][STANDINGS] = {
    [GMS_UP_NONE] =
        {[ABSENT] = GMS_UP_NONE, [COMING] = GMS_UP_NONE, [SETTLED] = GMS_UP_NONE, [CONDEMNED] = GMS_UP_NONE},
    [GMS_UP_STARTING] =
        {[ABSENT] = GMS_UP_STARTING, [COMING] = GMS_UP_STARTING, [SETTLED] = GMS_UP_READY, [CONDEMNED] = GMS_UP_ENDING},
    [GMS_UP_READY] = {[ABSENT] = GMS_UP_ENDING,
                      [COMING] = GMS_UP_READY, /* a shadow, after a restart of the coordinators */
                      [SETTLED] = GMS_UP_READY,
                      [CONDEMNED] = GMS_UP_ENDING},
    [GMS_UP_ENDING] =
        {[ABSENT] = GMS_UP_ENDING, [COMING] = GMS_UP_READY, [SETTLED] = GMS_UP_READY, [CONDEMNED] = GMS_UP_ENDING},
};

static void hear_of(struct gms_up_engines *engines, uint32_t id, const struct said *said, uint64_t now_ns)
{
    struct gms_up_engine *engine = &engines->engines[id];
    enum gms_up_phase before = engine->phase, next = phase_next[before][standing_of(engine, said)];
    if (before == GMS_UP_STARTING && engine->incarnation == 0)
        engine->incarnation = said->incarnation;
    if (next == before)
        return;
    if (before == GMS_UP_STARTING && next == GMS_UP_READY)
        gms_log(GMS_LOG_NOTICE, "engine %u is %s, %llu ms after its start", id,
                said->role == 'p' ? "parked" : "serving",
                (unsigned long long)((now_ns - engine->since_ns) / GMS_NS_PER_MS));
    if (before == GMS_UP_ENDING && next == GMS_UP_READY)
        gms_log(GMS_LOG_WARNING,
                "engine %u incarnation %llu is in the group again, where it was missing %llu ms ago: it is left alone",
                id, (unsigned long long)engine->incarnation,
                (unsigned long long)((now_ns - engine->since_ns) / GMS_NS_PER_MS));
    enter(engine, next, now_ns);
}

void gms_up_engines_hear(struct gms_up_engines *engines, const char *status, uint64_t now_ns)
{
    struct said said[GMS_MAX_ENGINES];
    bool answered = engines->answers;
    engines->known = engines->answers = status != NULL && read_engines(status, said);
    if (!engines->known)
        return;
    engines->heard_ns = now_ns;
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++) {
        if (!answered)
            engines->engines[id].awaited_ns = now_ns; /* nobody could have said how it is */
        engines->roles[id] = said[id].role;
        hear_of(engines, id, &said[id], now_ns);
    }
    tell_readiness(engines, now_ns);
}

bool gms_up_engines_should_ask(struct gms_up_engines *engines, uint64_t now_ns)
{
    uint64_t pause_ns = engines->was_ready && engines->known ? ask_later_ns : ask_soon_ns;
    if (!gms_up_engines_wanted(engines) || engines->stopping || now_ns - engines->asked_ns < pause_ns)
        return false;
    engines->asked_ns = now_ns;
    return true;
}

/* ---------------------------------------------------------------------------------------------- ends ---------- */

static bool is_rule(const char *line)
{
    return strncmp(line, "----------", 10) == 0;
}

/* The last lines of a file, on one. What Open MPI puts between two rules when it ends a job says less than the lines
 * before it. */
static void last_lines(const char *path, char *ret_text, size_t capacity)
{
    char tail[TAIL_BYTES + 1], *lines[TAIL_BYTES / 2], *save = NULL;
    size_t count = 0, rules = 0, used = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0, from = end > TAIL_BYTES ? end - TAIL_BYTES : 0;
    ssize_t length = fd >= 0 ? pread(fd, tail, TAIL_BYTES, from) : 0;
    gms_fd_close(&fd);
    ret_text[0] = '\0';
    if (length <= 0)
        return;
    tail[length] = '\0';
    for (char *line = strtok_r(tail, "\n", &save); line != NULL && count < sizeof lines / sizeof lines[0];
         line = strtok_r(NULL, "\n", &save)) {
        lines[count++] = line;
        rules += is_rule(line);
    }
    bool between = rules % 2 != 0; /* the first one of them closes what began further up */
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (is_rule(lines[i]))
            between = !between;
        else if (!between && strspn(lines[i], " \t\r") < strlen(lines[i]))
            lines[kept++] = lines[i];
    }
    for (size_t i = kept > LAST_LINES ? kept - LAST_LINES : 0; i < kept; i++) {
        used += (size_t)snprintf(ret_text + used, capacity - used, "%s%s", used > 0 ? " | " : "", lines[i]);
        if (used >= capacity)
            break;
    }
    for (char *at = ret_text; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
}

/* A start came to nothing. */
static void failed(struct gms_up_engines *engines, uint32_t id, const char *how, const char *lines, uint64_t now_ns)
{
    struct gms_error error;
    char text[512];
    uint64_t pause_ns = pauses_ns[engines->failures < PAUSES ? engines->failures : PAUSES - 1];
    engines->failures++;
    engines->next_start_ns = now_ns + (pause_ns > between_starts_ns ? pause_ns : between_starts_ns);
    snprintf(engines->reason, sizeof engines->reason, "%s", how);
    int length = snprintf(text, sizeof text, "engine %u did not become ready (%u in a row): %s; see %s\n", id,
                          engines->failures, how, engines->engines[id].output);
    gms_log(GMS_LOG_ERROR, "engine %u did not become ready: %s; the next start in %llu ms; its last words: %s", id, how,
            (unsigned long long)((engines->next_start_ns - now_ns) / GMS_NS_PER_MS), lines);
    if (gms_file_publish(engines->upkeep, text, length < (int)sizeof text ? (size_t)length : sizeof text - 1, &error) !=
        GMS_OK)
        gms_log(GMS_LOG_WARNING, "%s", error.text);
}

static void over(struct gms_up_engines *engines, uint32_t id, const char *how, uint64_t now_ns)
{
    struct gms_up_engine *engine = &engines->engines[id];
    enum gms_up_phase phase = engine->phase;
    bool adopted = engine->job.now.adopted;
    char lines[600];
    last_lines(engine->output, lines, sizeof lines);
    gms_up_launcher_over(&engine->job, &engine->job.now);
    enter(engine, GMS_UP_NONE, now_ns);
    engines->known = false; /* asked before the next start */
    if (engines->stopping)
        gms_log(GMS_LOG_NOTICE, "engine %u ended: %s", id, how);
    else if ((phase == GMS_UP_STARTING && !adopted) || engine->told) /* an adopted one may have been ready long ago */
        failed(engines, id, how, lines, now_ns);
    else
        gms_log(GMS_LOG_NOTICE, "engine %u ended: %s; its last words: %s", id, how, lines);
    engine->told = false;
}

void gms_up_engines_reaped(struct gms_up_engines *engines, pid_t pid, int wait_status, uint64_t now_ns)
{
    char how[64];
    if (WIFSIGNALED(wait_status))
        snprintf(how, sizeof how, "signal %d", WTERMSIG(wait_status));
    else
        snprintf(how, sizeof how, "exit status %d", WEXITSTATUS(wait_status));
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++)
        if (engines->engines[id].job.now.pid == pid)
            over(engines, id, how, now_ns);
}

void gms_up_engines_look_at_adopted(struct gms_up_engines *engines, uint64_t now_ns)
{
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++) {
        const struct gms_up_launcher *launcher = &engines->engines[id].job.now;
        if (launcher->adopted && gms_pidfd_ended(launcher->pidfd))
            over(engines, id, "its launcher was not ours, how is not known", now_ns);
    }
}

/* --------------------------------------------------------------------------------------------- starts --------- */

/* A packed list, expanded, behind `count` words. */
static gms_status add_words(const struct gms_up_engines *engines, uint32_t id, const char *packed, uint32_t bytes,
                            char **words, size_t *inout_count, size_t capacity, struct gms_error *ret_error)
{
    const struct gms_environment_place place = {
        .engine = id, .ranks = engines->config->ranks, .host = "", .address = "", .master_address = ""};
    char text[4096];
    for (uint32_t at = 0; at < bytes; at += (uint32_t)strlen(packed + at) + 1) {
        gms_status status = gms_environment_expand(packed + at, engines->config, &place, text, sizeof text, ret_error);
        if (status != GMS_OK)
            return status;
        if (*inout_count + 1 >= capacity)
            return gms_fail(ret_error, GMS_E_CONFIG, "the command of an engine has more than %zu words", capacity - 1);
        words[*inout_count] = strdup(text);
        if (words[*inout_count] == NULL)
            return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the command of an engine");
        words[++*inout_count] = NULL;
    }
    return GMS_OK;
}

static gms_status add_ours(const struct gms_up_engines *engines, uint32_t id, char **words, size_t *inout_count,
                           size_t capacity, struct gms_error *ret_error)
{
    char number[16], launch[48];
    snprintf(number, sizeof number, "%u", id);
    /* Not the launcher's own number of the job: in a container each mpirun is process 1 of the same host. */
    snprintf(launch, sizeof launch, "up.%u.%" PRIx64, id, gms_clock_ns());
    const char *const ours[] = {
        engines->options->exec, "--run-dir", engines->config->run_dir, "--engine", number, "--launch", launch, "--"};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        if (*inout_count + 1 >= capacity)
            return gms_fail(ret_error, GMS_E_CONFIG, "the command of an engine has more than %zu words", capacity - 1);
        words[*inout_count] = strdup(ours[i]);
        if (words[*inout_count] == NULL)
            return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the command of an engine");
        words[++*inout_count] = NULL;
    }
    return GMS_OK;
}

static gms_status start(struct gms_up_engines *engines, uint32_t id, uint64_t now_ns, struct gms_error *ret_error)
{
    const struct gms_config *config = engines->config;
    struct gms_up_engine *engine = &engines->engines[id];
    char *words[4 * GMS_UP_WORDS] = {NULL}, ranks[16];
    enum { CAPACITY = sizeof words / sizeof words[0] };
    size_t count = 0;
    gms_status status = GMS_OK;
    if (strcmp(config->launch_engines, "local") == 0) {
        snprintf(ranks, sizeof ranks, "%u", config->ranks);
        words[count++] = strdup(engines->options->self);
        words[count++] = strdup("local");
        words[count++] = strdup(ranks);
    } else {
        status = add_words(engines, id, config->launch_engines, config->launch_engines_bytes, words, &count, CAPACITY,
                           ret_error);
    }
    if (status == GMS_OK)
        status = add_ours(engines, id, words, &count, CAPACITY, ret_error);
    if (status == GMS_OK)
        status = add_words(engines, id, config->command, config->command_bytes, words, &count, CAPACITY, ret_error);
    if (status == GMS_OK) {
        const struct gms_up_start how = {.words = (const char *const *)words, .output = engine->output};
        status = gms_up_job_start(&engine->job, &how, ret_error);
    }
    for (size_t i = 0; i < CAPACITY; i++)
        free(words[i]);
    if (status != GMS_OK)
        return status;
    gms_log(GMS_LOG_NOTICE, "started engine %u: process %d, output in %s", id, (int)engine->job.now.pid,
            engine->output);
    enter(engine, GMS_UP_STARTING, now_ns);
    engine->incarnation = 0;
    engine->told = false;
    return GMS_OK;
}

/* Engines that serve, are parked, or are on the way there: anybody's. */
static uint32_t count_live(const struct gms_up_engines *engines)
{
    uint32_t count = 0;
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++)
        count += in_group(engines->roles[id]) || engines->engines[id].phase == GMS_UP_STARTING;
    return count;
}

static bool is_starting(const struct gms_up_engines *engines)
{
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++)
        if (engines->engines[id].phase == GMS_UP_STARTING)
            return true;
    return false;
}

/* How long the group has said, with its last document too, that this engine is in its phase. */
static uint64_t heard_for_ns(const struct gms_up_engines *engines, const struct gms_up_engine *engine)
{
    bool heard = engines->answers && engines->heard_ns > engine->awaited_ns;
    return heard ? engines->heard_ns - engine->awaited_ns : 0;
}

static void end_late(struct gms_up_engines *engines, uint64_t now_ns)
{
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++) {
        struct gms_up_engine *engine = &engines->engines[id];
        if (engine->told || engine->job.now.pid == 0)
            continue;
        if (engine->phase == GMS_UP_STARTING && heard_for_ns(engines, engine) >= engines->config->ready_within_ns) {
            gms_log(GMS_LOG_ERROR, "engine %u has not parked within standby.ready_within (%llu s): it is ended", id,
                    (unsigned long long)(engines->config->ready_within_ns / GMS_NS_PER_S));
            engine->told = true;
            gms_pidfd_signal(engine->job.now.pidfd, SIGKILL);
        } else if (engine->phase == GMS_UP_ENDING && heard_for_ns(engines, engine) >= clean_up_ns) {
            gms_log(GMS_LOG_WARNING, "engine %u is gone, its launcher does not end: it is killed", id);
            enter(engine, GMS_UP_ENDING, now_ns);
            gms_pidfd_signal(engine->job.now.pidfd, SIGKILL);
        }
    }
}

gms_status gms_up_engines_step(struct gms_up_engines *engines, uint64_t now_ns, struct gms_error *ret_error)
{
    if (!gms_up_engines_wanted(engines))
        return GMS_OK;
    if (engines->stopping) {
        if (now_ns < engines->stop_deadline_ns)
            return GMS_OK;
        engines->stop_deadline_ns = UINT64_MAX;
        for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++)
            if (engines->engines[id].job.now.pid != 0)
                gms_pidfd_signal(engines->engines[id].job.now.pidfd, SIGKILL);
        return GMS_OK;
    }
    end_late(engines, now_ns);
    for (uint32_t id = 0; id < GMS_MAX_ENGINES && engines->known && now_ns >= engines->next_start_ns; id++) {
        if (count_live(engines) >= 1 + engines->config->standby_count ||
            (engines->failures > 0 && is_starting(engines)))
            break; /* enough, or one trial at a time */
        if (engines->roles[id] != ' ' || engines->engines[id].job.now.pid != 0)
            continue; /* somebody has this number, or has it yet */
        gms_status status = start(engines, id, now_ns, ret_error);
        if (status != GMS_OK) {
            failed(engines, id, ret_error->text, "none, it was not started", now_ns);
            return status;
        }
    }
    return GMS_OK;
}

uint64_t gms_up_engines_deadline(const struct gms_up_engines *engines, uint64_t now_ns)
{
    if (!gms_up_engines_wanted(engines))
        return UINT64_MAX;
    if (engines->stopping)
        return gms_up_engines_over(engines) ? now_ns : engines->stop_deadline_ns;
    return engines->asked_ns + (engines->was_ready && engines->known ? ask_later_ns : ask_soon_ns);
}

/* ----------------------------------------------------------------------------------------------- stop --------- */

void gms_up_engines_stop(struct gms_up_engines *engines, uint64_t now_ns, uint64_t grace_ns)
{
    static const int signals[] = {[GMS_STOP_TERM] = SIGTERM, [GMS_STOP_USR1] = SIGUSR1, [GMS_STOP_INT] = SIGINT};
    if (engines->stopping)
        return;
    engines->stopping = true;
    engines->stop_deadline_ns = now_ns + grace_ns;
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++)
        if (engines->engines[id].job.now.pid != 0)
            gms_pidfd_signal(engines->engines[id].job.now.pidfd, signals[engines->config->stop_signal]);
    unlink(engines->upkeep);
}

bool gms_up_engines_over(const struct gms_up_engines *engines)
{
    for (uint32_t id = 0; id < GMS_MAX_ENGINES; id++)
        if (engines->engines[id].job.now.pid != 0)
            return false;
    return true;
}
