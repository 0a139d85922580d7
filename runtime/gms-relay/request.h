/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of one client request, without sockets, clock or memory: what to do when an engine serves, answers, dies or
 * falls silent. Time is a field of the event, in ns of a monotonic clock.
 *
 *             +------------------------- LOST, VACANT, a newer SERVES -------------------------+
 *             v                                                                                |
 *   arrive -> WAITING --SERVES: ask--> ASKED --TOKENS: forward--> FLOWING --END: finish--> DONE
 *             |  ^                      | |                        |   |
 *             |  +-------UNASKED--------+ +------END: finish-------|---+--> DONE
 *             |                           |                        |
 *             +--TICK past a limit--------+--REFUSED, silence------+--> FAILED
 *             +--CLIENT_GONE--------------+------------------------+--> GONE
 *
 * Rules:
 * - An attempt is one ask of one incarnation; what belongs to an older attempt is ignored, so two engines can never
 * both be heard.
 * - LOST counts as a crash in which the request was in flight. `crash_limit` of them within `crash_window_ns` of each
 * other fail it: it may be what kills the engines.
 * - After LOST the same incarnation is not asked again before `break_grace_ns` have passed, in which news of its death
 *   has come if it is dead.
 * - What the client has seen cannot be taken back: a visible request that cannot be continued fails.
 */
#ifndef GMS_RELAY_REQUEST_H
#define GMS_RELAY_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum relay_state {
    RELAY_WAITING, /* for an engine */
    RELAY_ASKED,   /* an engine has it, nothing came back yet */
    RELAY_FLOWING,
    RELAY_DONE,
    RELAY_FAILED,
    RELAY_GONE, /* the client went */
    RELAY_STATE_COUNT
};

enum relay_event_type {
    RELAY_SERVES,      /* `incarnation` serves */
    RELAY_VACANT,      /* nobody serves */
    RELAY_UNASKED,     /* of `attempt`: the engine could not be asked, it has nothing of the request */
    RELAY_LOST,        /* of `attempt`: the connection to the engine ended */
    RELAY_TOKENS,      /* of `attempt`: `count` more, from `index` on */
    RELAY_END,         /* of `attempt`: the answer is complete */
    RELAY_REFUSED,     /* of `attempt`: the engine does not want the request; `status`, `text` */
    RELAY_BROKEN,      /* of `attempt`: the engine does not keep to its protocol; `text` */
    RELAY_TICK,        /* time passed */
    RELAY_CLIENT_GONE, /* the client's connection ended */
    RELAY_EVENT_COUNT
};

struct relay_limits {
    uint64_t wait_ns;         /* for an engine, at a time */
    uint64_t silence_ns;      /* of an engine that was asked */
    uint64_t total_ns;        /* from arrival to end */
    uint64_t crash_window_ns; /* crashes that are further apart are not in a row */
    uint64_t break_grace_ns;
    uint64_t retry_ns;    /* after UNASKED */
    uint32_t crash_limit; /* at least 1 */
};

struct relay_event {
    enum relay_event_type type;
    uint64_t now_ns;
    uint64_t incarnation;
    uint32_t attempt, index, count;
    int status;
    const char *text; /* borrowed for the call */
};

enum { RELAY_TEXT_BYTES = 240 };

/* What follows, in this order: drop, forward, ask, then finish or fail. */
struct relay_actions {
    bool drop;    /* end the conversation with the engine; it stops working on it */
    bool forward; /* the tokens of the event go to the client */
    bool ask;     /* ask request->incarnation, as request->attempt, for what follows request->token_count tokens */
    bool finish;
    bool fail; /* with `status`, `text`; into the stream if the request is visible */
    int status;
    uint32_t retry_after_s; /* 0: retrying is of no use */
    char text[RELAY_TEXT_BYTES];
};

struct relay_request {
    const struct relay_limits *limits; /* borrowed */
    enum relay_state state;
    uint64_t incarnation;          /* asked last; 0: none */
    uint32_t attempt;              /* 0: none yet */
    uint32_t token_count;          /* forwarded */
    uint32_t max_tokens;           /* 0: the engine decides */
    uint32_t crashes;              /* in a row */
    uint32_t resumes;              /* times an engine went on with what another had begun */
    bool visible;                  /* the client has seen a part of the answer */
    bool resumable;                /* can go on after a crash though visible */
    const char *why_not_resumable; /* borrowed; a clause */
    uint64_t arrived_ns, since_ns; /* since: of the state, or of the last token */
    uint64_t waiting_since_ns;
    uint64_t crashed_ns;
    uint64_t not_before_ns; /* the next ask of the same incarnation */
};

void relay_request_begin(struct relay_request *request, const struct relay_limits *limits, uint32_t max_tokens,
                         uint64_t now_ns);

/* Applies one event. *ret_actions is filled whole. Events that mean nothing in the state are ignored. */
void relay_request_step(struct relay_request *request, const struct relay_event *event,
                        struct relay_actions *ret_actions);

/* When the next TICK is due; UINT64_MAX: never. A WAITING one wants SERVES again from not_before_ns on, if somebody
 * serves. */
uint64_t relay_request_deadline(const struct relay_request *request);
/* The engine is asked again, from the beginning and in other words, as a new attempt. Only while nothing is visible. */
void relay_request_restart(struct relay_request *request, uint64_t now_ns);
/* The engine is not to blame for the silence until now: it was not listened to, because the client does not read. */
void relay_request_heard(struct relay_request *request, uint64_t now_ns);
bool relay_request_over(const struct relay_request *request);
const char *relay_state_name(enum relay_state state);

#endif
