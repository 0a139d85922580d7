/* SPDX-License-Identifier: Apache-2.0
 *
 * Agreement: collective calls of M engines on N ranks, from the proposal to the answer, with crashes, recovery and lost
 * stores. Names in brackets are functions in coord/core.
 *
 *   every rank asks --round--> preparing --stored, prepared here--> votes --round--> OK or FAIL --stored--> told
 *         \--- one rank's deadline passed, or what is asked differs: in any round FAIL ---^
 *
 * State (int), 8 bits per engine: the outcome of call k at bit 2k (0 undecided, 1 OK, 2 FAIL), `preparing` at bit 7.
 * A call's number is its key: an engine rank asks for call k + 1 when it was told the outcome of call k.
 */
#ifndef M
#define M 2 /* engines */
#endif
#ifndef K
#define K 2 /* calls of each engine; at most 2 */
#endif

#define OK 1
#define FAIL 2
#define AT(e) ((e) * 8)
#define OUTCOME(s, e, k) (((s) >> (AT(e) + 2 * (k))) & 3)
#define PREPARING(s, e) (((s) >> (AT(e) + 7)) & 1)
#define NEXT(s, e) (OUTCOME(s, e, 0) == 0 -> 0 : (OUTCOME(s, e, 1) == 0 -> 1 : 2))
/* The outcomes in `s` of the calls that have one in `t`. */
#define DECIDED(t) (((t) | ((t) >> 1)) & 21845 /* 0x5555 */)
#define AMONG(s, t) ((s) & (DECIDED(t) | (DECIDED(t) << 1)))

/* Guards of this model. */
#define EXPIRED_BY_ROUND (MUTATE != 5) /* `expired` anywhere aborts everywhere, by a round; else a rank decides alone */
#define REFUSED_ABORTS (MUTATE != 6)
#define ALL_HAVE_VOTED (MUTATE != 7)

/* A call that went well stands for what is live. */
#define ALIVE(s) (PREPARING(s, 0) || PREPARING(s, M - 1) || ((s) & 21845) != 0)

/* Local: what this rank's vote on the pending call is, 2 bits per engine; what its engine ranks were told (as a state). */
#define PREPARED 1
#define REFUSED 2
byte vote[N] = 0;
int told[N] = 0;
#define VOTE(q, e) ((vote[q] >> (2 * (e))) & 3)
#define LOCAL_BEFORE(a, b) (told[a] < told[b] || (told[a] == told[b] && vote[a] < vote[b]))

#include "world.pml"

byte engine = 0; /* chosen in each step, 0 between steps */
#ifdef WITNESS
bit lives = 0; /* a second one began */
#endif

inline swap_locals(a, b)
{
    t_ = vote[a]; vote[a] = vote[b]; vote[b] = t_;
    t_ = told[a]; told[a] = told[b]; told[b] = t_;
}

inline start_locals()
{
    for (i_ : 0 .. N - 1) {
        vote[i_] = 0
    }
}

/* [is_remembered in propose.c] Launches of the old life are refused, so they end; others come. */
inline new_life()
{
#ifdef WITNESS
    lives = 1;
#endif
    for (i_ : 0 .. N - 1) {
        told[i_] = 0
    }
    for (i_ : 0 .. N - 1) {
        stored[i_] = 0 /* the same names stand for new launches now: nothing is decided of them */
    }
}

/* A rolled back call has no outcome: its ranks ask again under the same key. */
inline roll_back(state)
{
    for (i_ : 0 .. M - 1) {
        state = state & ~(128 << AT(i_))
    }
}

/* [gms_core_contributes] The key that the rank's engine rank asks for is the slot's next one. */
#define ASKS(q) (NEXT(told[q], engine) == NEXT(latest, engine))
#define HAS_VOTED(q) (VOTE(q, engine) != 0)
#define HAS_REFUSED(q) (VOTE(q, engine) == REFUSED)
#define CALL_IS_OPEN (NEXT(latest, engine) < K)

#define CAN_START (CALL_IS_OPEN && !PREPARING(latest, engine) && ON_ALL(ASKS))
#define CAN_END                                                                                                        \
    (CALL_IS_OPEN && PREPARING(latest, engine) && ((ALL_HAVE_VOTED && ON_ALL(HAS_VOTED)) || (!ALL_HAVE_VOTED && ON_ANY(HAS_VOTED))))
#define CAN_EXPIRE (CALL_IS_OPEN && ON_ANY(ASKS))
#define ENDS_WELL (!REFUSED_ABORTS || !ON_ANY(HAS_REFUSED))

#define WITH_OUTCOME(how) ((latest & ~(128 << AT(engine))) | ((how) << (AT(engine) + 2 * NEXT(latest, engine))))

/* [answer_decided, gms_core_outcome_stored] What rank r may tell of the next call of `engine`: 0, OK, FAIL. */
#define CALL(q) (NEXT(told[q], engine))
#define NEWS(q) (MAY_SHOW(q) && CALL(q) < K -> OUTCOME(SHOWN(q), engine, CALL(q)) : 0)
#define CAN_PREPARE(q)                                                                                                 \
    (IN_WORLD(q) && applied[q] && PREPARING(latest, engine) && VOTE(q, engine) == 0 && MAY_SHOW(q) &&                  \
     PREPARING(SHOWN(q), engine) && NEXT(SHOWN(q), engine) == NEXT(latest, engine))

/* One outcome for a call, whoever asks and whenever; and it is for ever. */
#define DIFFER(a, b) (AMONG(told[a], told[b]) != AMONG(told[b], told[a]))
#define FORGOTTEN(q) (up && AMONG(latest, told[q]) != told[q])
#if N == 2
#define DISAGREEMENT (DIFFER(0, 1))
#elif N == 3
#define DISAGREEMENT (DIFFER(0, 1) || DIFFER(0, 2) || DIFFER(1, 2))
#else
#define DISAGREEMENT (DIFFER(0, 1) || DIFFER(0, 2) || DIFFER(0, 3) || DIFFER(1, 2) || DIFFER(1, 3) || DIFFER(2, 3))
#endif
#define ANY_FORGOTTEN (ON_ANY(FORGOTTEN))

inline end_step()
{
    assert(!DISAGREEMENT);
#if MUTATE != 5
    assert(!ANY_FORGOTTEN); /* what was told is decided, and decided for ever */
#endif
    engine = 0;
    tidy()
}

#if K == 1
#define ALL_WELL ((OK << AT(0)) | (OK << AT(M - 1)))
#else
#define ALL_WELL ((OK << AT(0)) | (OK << AT(M - 1)) | (OK << (AT(0) + 2)) | (OK << (AT(M - 1) + 2)))
#endif
#define TOLD_ALL_OK(q) (told[q] == ALL_WELL)
#define TOLD_SOME_OK(q) (OUTCOME(told[q], 0, 0) == OK)
#define TOLD_NONE(q) (told[q] == 0)

active proctype group()
{
end: do
    :: atomic { /* a round: one call of one engine starts or ends */
        ROUND_CAN_END ->
        if
        :: engine = 0
        :: M > 1 -> engine = M - 1
        fi;
        if
        :: CAN_START -> /* [start] */
            d_step { printf("round: a call of engine %d starts\n", engine); round_ends(latest | (128 << AT(engine))); end_step() }
        :: CAN_END && ENDS_WELL -> /* [decide_commit] */
            d_step { printf("round: the call of engine %d is OK\n", engine); round_ends(WITH_OUTCOME(OK)); end_step() }
        :: CAN_END && !ENDS_WELL -> /* [decide_refused] */
            d_step { printf("round: the call of engine %d FAILs\n", engine); round_ends(WITH_OUTCOME(FAIL)); end_step() }
        :: CAN_EXPIRE -> /* [decide_expired, decide_keys_differ, fields_agree, gms_core_operation_condemned] */
            if
            :: EXPIRED_BY_ROUND ->
                d_step { printf("round: the call of engine %d FAILs, expired\n", engine); round_ends(WITH_OUTCOME(FAIL)); end_step() }
            :: else -> engine = 0
            fi
        :: else -> engine = 0
        fi
    }
    :: atomic { /* a rank does something by itself */
        up ->
        choose_rank();
        if
        :: engine = 0
        :: M > 1 -> engine = M - 1
        fi;
        if
        :: !applied[r] -> /* [round_done]; a vote goes with its operation */
            d_step {
                printf("rank %d applies the round\n", r);
                apply_round();
                for (i_ : 0 .. M - 1) {
                    /* all or none: nothing is committed that this rank has not prepared */
                    assert(before == NOWHERE || OUTCOME(latest, i_, NEXT(before, i_)) != OK || VOTE(r, i_) == PREPARED);
                    if
                    :: !PREPARING(latest, i_) -> vote[r] = vote[r] & ~(3 << (2 * i_))
                    :: else
                    fi
                }
                end_step()
            }
        :: CAN_STORE(r) -> /* [gms_core_stored] */
            d_step { printf("rank %d stores its state\n", r); store_snapshot(); end_step() }
        :: CAN_PREPARE(r) -> /* [gms_core_prepare_stored, gms_core_prepared] */
            d_step { printf("rank %d votes for the call of engine %d\n", r, engine); vote[r] = vote[r] | (PREPARED << (2 * engine)); end_step() }
        :: CAN_PREPARE(r) -> /* [vote_refuse] */
            d_step { printf("rank %d refuses the call of engine %d\n", r, engine); vote[r] = vote[r] | (REFUSED << (2 * engine)); end_step() }
        :: NEWS(r) != 0 -> /* [gms_core_outcome_stored]: COMMIT or ABORT, and REPLY */
            d_step {
                printf("rank %d tells engine %d the outcome %d of call %d\n", r, engine, NEWS(r), CALL(r));
                told[r] = told[r] | (NEWS(r) << (AT(engine) + 2 * CALL(r)));
#if MUTATE != 1
                assert(AMONG(stored[r], told[r]) == told[r]); /* nothing is told that is not stored */
#endif
                end_step()
            }
        :: !EXPIRED_BY_ROUND && CAN_EXPIRE && ASKS(r) && applied[r] -> /* the mutation: a deadline is this rank's own */
            d_step { printf("rank %d tells engine %d by itself that its call expired\n", r, engine); told[r] = told[r] | (FAIL << (AT(engine) + 2 * CALL(r))); end_step() }
        :: else -> d_step { engine = 0; r = 0 }
        fi
    }
    world_steps()
    od
}

#ifdef WITNESS /* what must be reachable, or the rest means nothing */
#if WITNESS == 1
ltl witness { [] !(crashes == CRASHES && ON_ALL(TOLD_ALL_OK)) }
#elif WITNESS == 2
ltl witness { [] !in_doubt }
#elif WITNESS == 3 /* one rank was told, then all died: the others are still to be told */
ltl witness { [] !(!up && ON_ANY(TOLD_SOME_OK) && ON_ANY(TOLD_NONE)) }
#elif WITNESS == 4 /* a store is lost, the group goes on, and all is well */
ltl witness { [] !(losses == 1 && ON_ALL(TOLD_ALL_OK)) }
#elif WITNESS == 5 /* the only one that had told anything is lost, a new life begins, and all is well */
ltl witness { [] !(lives == 1 && ON_ALL(TOLD_ALL_OK)) }
#endif
#else
ltl same_outcome { [] !DISAGREEMENT }
ltl decided_for_ever { [] !ANY_FORGOTTEN }
/* A rank that was told OK for the first call of engine 0 lives in a group that has decided so, in every later world. */
ltl ok_stays { [] ((OUTCOME(told[N - 1], 0, 0) == OK) -> [] (!up || OUTCOME(latest, 0, 0) == OK)) }
#endif
