/* SPDX-License-Identifier: Apache-2.0
 *
 * What the three models share: rounds, stores, crashes of the coordinator job, recovery.
 *
 * The replicated state is one int (each model packs its own). After a round some ranks have applied it and the others
 * still hold the state before, so two values say what all ranks hold. A store holds one snapshot; `lag` orders stores
 * by the number of their round: 0 is the newest state there is, equal lags are equal rounds, LOST is none at all.
 *
 *   in a world ---a round that changes something---> applied by each rank ---> stored by each rank ---> told
 *       |  ^
 *       |  +-- round 0: the greatest round stored is adopted ---- down ----> in doubt (for ever)
 *       +------- any rank crashes: all start again --------------^   \--> a store is lost or put back
 *
 * The model that includes this defines before: roll_back(state) [what round 0 makes of an adopted state],
 * ALIVE(state) [something in it is prepared or live], start_locals() [what every rank forgets when it dies], new_life()
 * [those who asked in the old one start anew, under new names];
 * with SYMMETRY also LOCAL_BEFORE(a, b) and swap_locals(a, b).
 */
#ifndef N
#define N 3 /* coordinator ranks */
#endif
#ifndef CRASHES
#define CRASHES 2 /* crashes of the coordinator job */
#endif
#ifndef LOSSES
#define LOSSES 0 /* stores that are lost, or put back as an old copy, while the job is down */
#endif
#ifndef DOUBT
#define DOUBT 4 /* in doubt when: 1: something is prepared or live elsewhere; 2: the lost one was the newest; 4: as 2, but
                   where nothing lives a new life of the group begins (core/recovery.h) */
#endif
#ifndef MUTATE
#define MUTATE 0
#endif

/* Guards that every model has, and that can be taken out. */
#define STORE_BEFORE_VISIBLE (MUTATE != 1)
#define GREATEST_ROUND_WINS (MUTATE != 2)
#define ROUNDS_GO_ON (MUTATE != 3) /* a new world's rounds count as later than all rounds of older worlds */

#define DOUBT_REFUSES (MUTATE != 4)
#define LIFE_ENDS (MUTATE != 11) /* in a new life nobody is answered who asked in an older one */

#define NOWHERE (-1)
#define LOST 15

int latest = 0;        /* after the last round */
int before = NOWHERE;  /* before it; NOWHERE when that was another world, or all ranks have applied the last round */
bit applied[N] = 1;
int stored[N] = 0;
byte lag[N] = 0;
bit current[N] = 1;    /* the store was written in this world: what depends on it may leave */
bit up = 1;            /* a world runs */
bit in_doubt = 0;
bit newest_lost = 0;   /* a lost store held a round that no other one has */
byte crashes = 0, losses = 0;
byte r = 0;            /* the rank that acts: chosen in each step, 0 between steps */

/* Scratch, written before it is read within one d_step. */
hidden byte i_, j_, n_, best_;
hidden int t_;
hidden byte held_, alive_;

#define MEMORY(q) (applied[q] -> latest : before)
#define IN_WORLD(q) (up && (applied[q] || before != NOWHERE))
/* What rank q may show: what it has stored in this world. The mutation shows what it only holds in memory. */
#define MAY_SHOW(q) (IN_WORLD(q) && (!STORE_BEFORE_VISIBLE || current[q]))
#define SHOWN(q) (STORE_BEFORE_VISIBLE -> stored[q] : MEMORY(q))

#if N == 2
#define ON_ALL(P) (P(0) && P(1))
#define ON_ANY(P) (P(0) || P(1))
#elif N == 3
#define ON_ALL(P) (P(0) && P(1) && P(2))
#define ON_ANY(P) (P(0) || P(1) || P(2))
#elif N == 4
#define ON_ALL(P) (P(0) && P(1) && P(2) && P(3))
#define ON_ANY(P) (P(0) || P(1) || P(2) || P(3))
#else
#error "N is 2, 3 or 4"
#endif

/* A round ends when all ranks entered it. With GATED a rank enters the next one when it has stored the last: then it is
 * one step to apply and to store, since nothing can be seen in between. */
#define HAS_APPLIED(q) (applied[q])
#define ROUND_CAN_END (up && ON_ALL(HAS_APPLIED))
#ifdef GATED
#define apply_round() applied[r] = 1; if :: STORE_BEFORE_VISIBLE -> store_snapshot() :: else fi
#else
#define apply_round() applied[r] = 1
#endif

#if N == 2
#define choose_rank() if :: r = 0 :: r = 1 fi
#elif N == 3
#define choose_rank() if :: r = 0 :: r = 1 :: r = 2 fi
#else
#define choose_rank() if :: r = 0 :: r = 1 :: r = 2 :: r = 3 fi
#endif

#ifdef SYMMETRY
/* Ranks are alike: every step ends with them in order, so of states that differ by a renaming one is kept. */
#define OUT_OF_ORDER(a, b)                                                                                             \
    (stored[b] < stored[a] ||                                                                                          \
     (stored[b] == stored[a] &&                                                                                        \
      (lag[b] * 4 + applied[b] * 2 + current[b] < lag[a] * 4 + applied[a] * 2 + current[a] ||                          \
       (lag[b] == lag[a] && applied[b] == applied[a] && current[b] == current[a] && LOCAL_BEFORE(b, a)))))
inline order_ranks()
{
    for (i_ : 0 .. N - 2) {
        for (j_ : 0 .. N - 2 - i_) {
            if
            :: OUT_OF_ORDER(j_, j_ + 1) ->
                t_ = stored[j_]; stored[j_] = stored[j_ + 1]; stored[j_ + 1] = t_;
                t_ = lag[j_]; lag[j_] = lag[j_ + 1]; lag[j_ + 1] = t_;
                t_ = applied[j_]; applied[j_] = applied[j_ + 1]; applied[j_ + 1] = t_;
                t_ = current[j_]; current[j_] = current[j_ + 1]; current[j_ + 1] = t_;
                swap_locals(j_, j_ + 1)
            :: else
            fi
        }
    }
}
#else
#define order_ranks() skip
#endif

/* Ends every step: one way to write down what is the same. Lags become dense; only their order means something. */
inline tidy()
{
    if
    :: up && before != NOWHERE && ON_ALL(HAS_APPLIED) -> before = NOWHERE
    :: else
    fi;
    for (n_ : 0 .. N) {
        for (i_ : 1 .. N + 1) { /* the state before the last round keeps 1 while somebody holds it */
            held_ = (i_ == 1 && before != NOWHERE);
            for (j_ : 0 .. N - 1) {
                held_ = held_ || lag[j_] == i_
            }
            if
            :: !held_ ->
                for (j_ : 0 .. N - 1) {
                    if
                    :: lag[j_] > i_ && lag[j_] != LOST -> lag[j_]--
                    :: else
                    fi
                }
            :: else
            fi
        }
    }
    order_ranks();
    r = 0
}

/* A round that all ranks entered has merged into a new state. Enabled by ROUND_CAN_END. */
inline round_ends(state)
{
    before = latest;
    latest = state;
    for (i_ : 0 .. N - 1) {
        applied[i_] = 0;
        if
        :: lag[i_] != LOST -> lag[i_]++
        :: else
        fi
    }
}

/* Rank r has its snapshot durably, and told the keeper's mirror so. Older snapshots on their way are no news. */
#define CAN_STORE(q) (IN_WORLD(q) && (!current[q] || lag[q] > (applied[q] -> 0 : 1)))
inline store_snapshot()
{
    stored[r] = MEMORY(r);
    lag[r] = (applied[r] -> 0 : 1);
    current[r] = 1
}

/* One rank dies; its peers hear it and start again too. That they act a little longer is the same as dying later. */
inline crash()
{
    crashes++;
    up = 0;
    best_ = 1;
    for (i_ : 0 .. N - 1) {
        best_ = (lag[i_] == 0 -> 0 : best_)
    }
    for (i_ : 0 .. N - 1) {
        if
        :: lag[i_] != LOST && best_ == 0 -> lag[i_]++
        :: else
        fi;
        if
        :: !ROUNDS_GO_ON && lag[i_] != LOST && current[i_] && crashes > 1 -> lag[i_] = lag[i_] + N + 1
        :: else
        fi;
        applied[i_] = 0;
        current[i_] = 0
    }
    latest = 0;
    before = NOWHERE;
    start_locals()
}

/* The store of rank r is gone, or an old copy of it was put back: the keeper's mirror tells (store.c). */
#define CAN_LOSE(q) (!up && !in_doubt && losses < LOSSES && lag[q] != LOST)
inline lose_store()
{
    losses++;
    held_ = 1;
    for (i_ : 0 .. N - 1) {
        held_ = held_ && (i_ == r || lag[i_] > lag[r])
    }
    newest_lost = newest_lost || held_;
    stored[r] = 0;
    lag[r] = LOST
}

/* Round 0: every rank tells what it has stored; the same is concluded everywhere. */
inline recover()
{
    best_ = 0;
    held_ = 0;
    n_ = 0;
    for (i_ : 0 .. N - 1) {
        if
        :: GREATEST_ROUND_WINS && lag[i_] < lag[best_] -> best_ = i_
        :: !GREATEST_ROUND_WINS && lag[i_] > lag[best_] -> best_ = i_
        :: else
        fi;
        n_ = n_ + (lag[i_] == LOST -> 1 : 0);
        held_ = held_ || (lag[i_] != LOST && ALIVE(stored[i_]))
    }
    alive_ = held_;
    held_ = DOUBT_REFUSES && n_ > 0 && ((DOUBT == 1 && held_) || (DOUBT == 2 && newest_lost) ||
                                        (DOUBT == 3 && (held_ || newest_lost)) || (DOUBT == 4 && newest_lost && held_));
    if
    :: held_ -> in_doubt = 1
    :: else ->
        if
        :: DOUBT == 4 && newest_lost && !alive_ && LIFE_ENDS -> new_life()
        :: else
        fi;
        up = 1;
        newest_lost = 0;
        latest = stored[best_];
        roll_back(latest)
    fi
}

/* The steps of the job as a whole, as options of the model's loop. end_step() is the model's. */
#define world_steps()                                                                                                  \
    :: d_step { up && crashes < CRASHES -> printf("a rank dies: all start again\n"); crash(); end_step() }             \
    :: atomic {                                                                                                        \
        !up && !in_doubt && losses < LOSSES ->                                                                         \
        choose_rank();                                                                                                 \
        if                                                                                                             \
        :: CAN_LOSE(r) -> d_step { printf("the store of rank %d is lost\n", r); lose_store(); end_step() }             \
        :: else -> r = 0                                                                                               \
        fi                                                                                                             \
    }                                                                                                                  \
    :: d_step { !up && !in_doubt -> recover(); printf("round 0: state %x, in doubt %d\n", latest, in_doubt); end_step() }
