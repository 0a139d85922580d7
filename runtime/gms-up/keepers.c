/* SPDX-License-Identifier: Apache-2.0 */
#include "gms-up/keepers.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "config/environment.h"

static const uint64_t pauses_ns[] = {200 * GMS_NS_PER_MS, 500 * GMS_NS_PER_MS, GMS_NS_PER_S, 2 * GMS_NS_PER_S};
enum { PAUSES = sizeof pauses_ns / sizeof pauses_ns[0] };

bool gms_up_keepers_wanted(const struct gms_up_keepers *keepers)
{
    return keepers->options->keep_keeper && keepers->config->launch_keepers_bytes > 0;
}

gms_status gms_up_keepers_open(struct gms_up_keepers *keepers, const struct gms_up_options *options,
                               const struct gms_config *config, struct gms_error *ret_error)
{
    *keepers = (struct gms_up_keepers){.options = options, .config = config};
    snprintf(keepers->output, sizeof keepers->output, "%s/keepers.log", config->run_dir);
    return gms_up_job_open(&keepers->job, config->run_dir, "keepers", ret_error);
}

bool gms_up_keepers_adopt(struct gms_up_keepers *keepers)
{
    return gms_up_keepers_wanted(keepers) && gms_up_job_adopt(&keepers->job);
}

gms_status gms_up_keepers_step(struct gms_up_keepers *keepers, uint64_t now_ns, struct gms_error *ret_error)
{
    const struct gms_config *config = keepers->config;
    const struct gms_environment_place place = {
        .ranks = config->ranks, .host = "", .address = "", .master_address = ""};
    const char *const ours[] = {keepers->options->self, "keeper",       "--run-dir",
                                config->run_dir,        "--gms-keeper", keepers->options->keeper};
    enum { OURS = sizeof ours / sizeof ours[0] };
    char *words[GMS_UP_WORDS + OURS + 1] = {NULL}, text[4096];
    size_t count = 0;
    gms_status status = GMS_OK;
    if (!gms_up_keepers_wanted(keepers) || keepers->job.now.pid != 0 || now_ns < keepers->next_start_ns)
        return GMS_OK;
    for (uint32_t at = 0; status == GMS_OK && at < config->launch_keepers_bytes && count < GMS_UP_WORDS;
         at += (uint32_t)strlen(config->launch_keepers + at) + 1) {
        status = gms_environment_expand(config->launch_keepers + at, config, &place, text, sizeof text, ret_error);
        if (status == GMS_OK && (words[count++] = strdup(text)) == NULL)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the command of the keepers");
    }
    for (size_t i = 0; status == GMS_OK && i < OURS; i++)
        if ((words[count++] = strdup(ours[i])) == NULL)
            status = gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the command of the keepers");
    if (status == GMS_OK) {
        const struct gms_up_start how = {
            .words = (const char *const *)words, .output = keepers->output, .temporary_files = true};
        status = gms_up_job_start(&keepers->job, &how, ret_error);
    }
    if (status == GMS_OK)
        gms_log(GMS_LOG_NOTICE, "started what keeps a keeper on each host: %s, process %d, output in %s", words[0],
                (int)keepers->job.now.pid, keepers->output);
    for (size_t i = 0; i < count; i++)
        free(words[i]);
    return status;
}

uint64_t gms_up_keepers_deadline(const struct gms_up_keepers *keepers)
{
    return gms_up_keepers_wanted(keepers) && keepers->job.now.pid == 0 ? keepers->next_start_ns : UINT64_MAX;
}

/* Returns the pause, in ms for the log. */
static unsigned start_later(struct gms_up_keepers *keepers, uint64_t now_ns)
{
    uint64_t pause_ns = pauses_ns[keepers->failures < PAUSES ? keepers->failures : PAUSES - 1];
    keepers->failures++;
    keepers->next_start_ns = now_ns + pause_ns;
    return (unsigned)(pause_ns / GMS_NS_PER_MS);
}

void gms_up_keepers_not_started(struct gms_up_keepers *keepers, const struct gms_error *error, uint64_t now_ns)
{
    unsigned pause_ms = start_later(keepers, now_ns);
    gms_log(GMS_LOG_ERROR, "what keeps a keeper on each host was not started: %s; trying again in %u ms", error->text,
            pause_ms);
}

static void over(struct gms_up_keepers *keepers, uint64_t now_ns)
{
    if (now_ns - keepers->job.now.started_ns >= keepers->options->settled_ns)
        keepers->failures = 0;
    unsigned pause_ms = start_later(keepers, now_ns);
    gms_log(GMS_LOG_WARNING, "what keeps a keeper on each host has ended, see %s; starting it again in %u ms",
            keepers->output, pause_ms);
    gms_up_launcher_over(&keepers->job, &keepers->job.now);
}

void gms_up_keepers_reaped(struct gms_up_keepers *keepers, pid_t pid, uint64_t now_ns)
{
    if (pid == keepers->job.now.pid)
        over(keepers, now_ns);
}

void gms_up_keepers_look_at_adopted(struct gms_up_keepers *keepers, uint64_t now_ns)
{
    if (keepers->job.now.adopted && gms_pidfd_ended(keepers->job.now.pidfd))
        over(keepers, now_ns);
}

void gms_up_keepers_stop(struct gms_up_keepers *keepers, bool force, uint64_t deadline_ns)
{
    struct gms_up_launcher *now = &keepers->job.now;
    if (now->pid == 0)
        return;
    /* Launchers hand USR1 on as it is, and give whom they told by TERM a second. */
    gms_pidfd_signal(now->pidfd, force ? SIGUSR1 : SIGTERM);
    struct pollfd ended = {.fd = now->pidfd, .events = POLLIN};
    if (poll(&ended, 1, gms_clock_poll_ms(deadline_ns)) == 0)
        gms_pidfd_signal(now->pidfd, SIGKILL);
    gms_up_launcher_over(&keepers->job, now);
}

void gms_up_keepers_close(struct gms_up_keepers *keepers)
{
    if (keepers->config != NULL)
        gms_up_job_close(&keepers->job);
}
