/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan: everything that a drill will do, decided before anything is started. options.c fills it from the command
 * line, drill_plan_complete fills in what depends on other settings and refuses what cannot be done, drill_plan_print
 * shows it. Nothing in it changes while the drill runs.
 */
#ifndef GMS_DRILL_PLAN_H
#define GMS_DRILL_PLAN_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "gms/status.h"

enum {
    DRILL_MAX_RANKS = 64,
    DRILL_MAX_ENGINES = 8,     /* what a group has room for */
    DRILL_MAX_FAILOVERS = 7,   /* one engine must be left to serve */
    DRILL_MAX_REPEAT = 100000, /* of a catalogue */
    DRILL_MAX_STREAMS = 256,
    DRILL_MAX_TOKENS = 4096,
    DRILL_MAX_PROMPTS = 1024,
    DRILL_PATH_BYTES = 512,
    DRILL_COMMAND_WORDS = 64,
    DRILL_PROBE_TOKENS = 8, /* length of the new request that is timed through a failover */
};

/* What makes coordinators notice an engine that has work and makes no progress; and how soon, in a drill. */
#define DRILL_HANG_GROUP   "detection"
#define DRILL_HANG_NAME    "progress_timeout"
#define DRILL_HANG_SETTING DRILL_HANG_GROUP "." DRILL_HANG_NAME
#define DRILL_HANG_TIME    "1s"

enum drill_when { DRILL_WHEN_ANY, DRILL_WHEN_PREFILL, DRILL_WHEN_DECODE, DRILL_WHEN_SEAL, DRILL_WHEN_COUNT };
enum drill_verify { DRILL_VERIFY_AS_CONFIGURED, DRILL_VERIFY_FULL, DRILL_VERIFY_NONE, DRILL_VERIFY_COUNT };
enum drill_sabotage {
    DRILL_SABOTAGE_NONE,
    DRILL_SABOTAGE_POISON_PAGE,  /* other bytes in sealed pages of one rank */
    DRILL_SABOTAGE_FLIP_RECORD,  /* one byte of one sealed record of one rank */
    DRILL_SABOTAGE_NONE_ADOPTED, /* one byte of every sealed record of one rank */
    DRILL_SABOTAGE_EACH,         /* of the catalogue: every row's own */
    DRILL_SABOTAGE_COUNT
};

enum { DRILL_RANK_ALL = -1 };

struct drill_plan {
    /* where */
    char config[DRILL_PATH_BYTES];   /* deployment file that is taken as the base; "": the built-in one */
    char attach[DRILL_PATH_BYTES];   /* run directory of a running deployment; "": start one */
    char against[DRILL_PATH_BYTES];  /* run directory of a running deployment whose processes the catalogue may end */
    bool agreed;                     /* --yes: nobody is asked */
    uint64_t soak_ns;                /* rows of the catalogue, drawn, for so long; 0: in order, repeat times */
    char log_dir[DRILL_PATH_BYTES];  /* engines' own logs, attach only; "": read from an engine's command line */
    char work_dir[DRILL_PATH_BYTES]; /* "": a new one under TMPDIR */
    char bin_dir[DRILL_PATH_BYTES];  /* of gms-keeper, gms-coord, gms-exec, minillm */
    char prompts[DRILL_PATH_BYTES];  /* file */
    char json[DRILL_PATH_BYTES];     /* "": no JSON */
    char junit[DRILL_PATH_BYTES], html[DRILL_PATH_BYTES]; /* the same */
    const char *command[DRILL_COMMAND_WORDS + 1]; /* engine command of the command line, borrowed; [0] NULL: none */
    bool keep, dry_run, verbose;
    bool exact;              /* an engine whose undisturbed runs differ has failed */
    bool detect_hangs;       /* the deployment file sets DRILL_HANG_SETTING to DRILL_HANG_TIME */
    bool under_gms_up;       /* keeper and coordinators are gms-up's business */
    bool two_hosts;          /* made of namespaces, half of the ranks on each (hosts.h); links are noticed soon */
    uint64_t run_disk_bytes; /* the run directory is a file system of its own of that size; 0: it is not. Takes a mount
                                namespace of the drill's own */

    /* what */
    uint32_t ranks;   /* 0: attached, and asked from the deployment when the drill starts */
    uint32_t engines; /* 0: 1 + repeat */
    uint32_t streams;
    uint32_t max_tokens;
    double temperature;
    uint64_t seed;
    enum drill_verify verify;

    /* rows of the catalogue; 0: one drill of SIGKILLs as said below */
    uint64_t rows;
    double rate;  /* new requests in a second at most; 0: as soon as one has ended */
    bool compare; /* the same fault with gms-failover, with a file-lock standby and with a cold restart */
    bool list;    /* show the catalogue and stop */

    /* the fault */
    int32_t rank; /* DRILL_RANK_ALL: all */
    enum drill_when when;
    uint32_t repeat;
    uint32_t after_tokens; /* of all streams together, before each fault; 0: spread evenly */
    enum drill_sabotage sabotage;
    uint32_t sabotage_pages;
    int32_t sabotage_rank; /* -1: the last */

    uint32_t timeout_s; /* of each wait */
};

/* Fills in the defaults. Copies nothing from the environment. */
void drill_plan_defaults(struct drill_plan *ret_plan);

/*
 * Fills in what follows from other settings (engines, bin_dir, prompts, ranks of a deployment file) and checks that the
 * whole can be done. Errors: INVALID, with the option's name, the value, the limit and what to do.
 */
gms_status drill_plan_complete(struct drill_plan *plan, struct gms_error *ret_error);

/* Writes the plan for people: what will be started, killed and compared. */
void drill_plan_print(const struct drill_plan *plan, FILE *stream);

/* The number of tokens, of all streams together, at which fault `failover` (from 0) is made. */
uint32_t drill_plan_fault_tokens(const struct drill_plan *plan, uint32_t failover);

/* True when the engine is asked to kill itself: in the middle of a named phase, and always in a deployment that the
 * drill is only attached to (it signals no process that it did not start; "any" is then "decode"). */
bool drill_plan_armed(const struct drill_plan *plan);

const char *drill_when_name(enum drill_when when);
const char *drill_verify_name(enum drill_verify verify);
const char *drill_sabotage_name(enum drill_sabotage sabotage);
gms_status drill_when_parse(const char *text, enum drill_when *ret_when, struct gms_error *ret_error);
gms_status drill_verify_parse(const char *text, enum drill_verify *ret_verify, struct gms_error *ret_error);
gms_status drill_sabotage_parse(const char *text, enum drill_sabotage *ret_sabotage, struct gms_error *ret_error);
/* "0".."63" or "all". */
gms_status drill_rank_parse(const char *text, int32_t *ret_rank, struct gms_error *ret_error);
/* A decimal number of `option` between `least` and `greatest`; digits only. */
gms_status drill_number_parse(const char *option, const char *text, uint64_t least, uint64_t greatest,
                              uint64_t *ret_value, struct gms_error *ret_error);

#endif
