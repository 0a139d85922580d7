/* SPDX-License-Identifier: Apache-2.0 */
#include "deployment_file.h"

#include <libconfig.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char builtin_config[] = "deployment = \"drill\";\n"
                                     "run_dir = \"/\";\n"
                                     "ranks = 2;\n"
                                     "memory : { backend = \"host\"; capacity = \"256MiB\"; };\n"
                                     "kv : { verify = \"full\"; };\n"
                                     "timeouts : { operation = \"30s\"; round = \"20s\"; heartbeat = \"20s\"; };\n"
                                     "engine : { command = ( \"minillm\" ); };\n"
                                     "complete = true;\n";

static bool set_text(config_setting_t *group, const char *name, const char *value)
{
    config_setting_t *setting = config_setting_get_member(group, name);
    if (setting == NULL)
        setting = config_setting_add(group, name, CONFIG_TYPE_STRING);
    return setting != NULL && config_setting_set_string(setting, value) == CONFIG_TRUE;
}

static config_setting_t *group_named(config_setting_t *root, const char *name)
{
    config_setting_t *group = config_setting_get_member(root, name);
    return group != NULL ? group : config_setting_add(root, name, CONFIG_TYPE_GROUP);
}

/* The last setting of the file says that it is whole, so it is taken out and put back behind what was added. */
static bool move_complete_to_end(config_setting_t *root)
{
    config_setting_remove(root, "complete");
    config_setting_t *complete = config_setting_add(root, "complete", CONFIG_TYPE_BOOL);
    return complete != NULL && config_setting_set_bool(complete, 1) == CONFIG_TRUE;
}

static gms_status take_command(struct drill_deployment *deployment, const config_t *config, struct gms_error *ret_error)
{
    const config_setting_t *command = config_lookup(config, "engine.command");
    size_t count = 0;
    const char *word = "minillm";
    for (size_t i = 0; word != NULL; i++) {
        if (deployment->plan->command[0] != NULL)
            word = deployment->plan->command[i];
        else if (command != NULL)
            word = config_setting_get_string_elem(command, (int)i);
        else
            word = i == 0 ? word : NULL;
        if (word == NULL)
            break;
        if (count == DRILL_COMMAND_WORDS - 4)
            return gms_fail(ret_error, GMS_E_INVALID, "the engine command has more than %d words",
                            DRILL_COMMAND_WORDS - 4);
        if ((deployment->engine_words[count++] = strdup(word)) == NULL)
            return gms_fail(ret_error, GMS_E_NO_MEMORY, "no memory for the engine command");
    }
    if (count == 0)
        return gms_fail(ret_error, GMS_E_INVALID, "the deployment file's engine.command is empty");
    /* A name without a slash is one of our programs where there is one, else found in PATH. */
    char path[DRILL_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%.60s", deployment->plan->bin_dir, deployment->engine_words[0]);
    if (strchr(deployment->engine_words[0], '/') == NULL && access(path, X_OK) == 0) {
        free((void *)(uintptr_t)deployment->engine_words[0]);
        deployment->engine_words[0] = strdup(path);
    }
    return GMS_OK;
}

gms_status drill_deployment_write_file(struct drill_deployment *deployment, const char *word,
                                       struct gms_error *ret_error)
{
    const struct drill_plan *plan = deployment->plan;
    config_t config;
    config_init(&config);
    gms_status status = GMS_OK;
    char name[64];
    snprintf(name, sizeof name, "drill-%d-%s", (int)getpid(), word);
    int read =
        plan->config[0] != '\0' ? config_read_file(&config, plan->config) : config_read_string(&config, builtin_config);
    config_setting_t *root = config_root_setting(&config);
    if (read != CONFIG_TRUE)
        status = gms_fail(ret_error, GMS_E_CONFIG, "%s:%d: %s", plan->config, config_error_line(&config),
                          config_error_text(&config));
    config_setting_t *kv = status == GMS_OK ? group_named(root, "kv") : NULL;
    config_setting_t *ranks = status == GMS_OK ? config_setting_get_member(root, "ranks") : NULL;
    if (status == GMS_OK &&
        (ranks == NULL || kv == NULL || config_setting_set_int(ranks, (int)plan->ranks) != CONFIG_TRUE ||
         !set_text(root, "run_dir", deployment->run_dir) || !set_text(root, "deployment", name) ||
         (plan->detect_hangs && !set_text(group_named(root, DRILL_HANG_GROUP), DRILL_HANG_NAME, DRILL_HANG_TIME)) ||
         (plan->two_hosts && (!set_text(group_named(root, "timeouts"), "heartbeat", "500ms") ||
                              !set_text(group_named(root, "timeouts"), "round", "2s"))) ||
         (plan->verify != DRILL_VERIFY_AS_CONFIGURED && !set_text(kv, "verify", drill_verify_name(plan->verify))) ||
         !move_complete_to_end(root) || config_write_file(&config, deployment->config) != CONFIG_TRUE))
        status = gms_fail(ret_error, GMS_E_CONFIG, "%s cannot be written from %s", deployment->config,
                          plan->config[0] != '\0' ? plan->config : "the built-in deployment");
    const char *verify = "full";
    if (status == GMS_OK) {
        config_setting_lookup_string(kv, "verify", &verify);
        deployment->verify_full = strcmp(verify, "full") == 0;
        const char *trust = "verified";
        config_lookup_string(&config, "takeover.adopt_after_device_error", &trust);
        deployment->trusts_broken_device =
            strcmp(trust, "always") == 0 || (strcmp(trust, "verified") == 0 && deployment->verify_full);
        status = take_command(deployment, &config, ret_error);
    }
    config_destroy(&config);
    return status;
}
