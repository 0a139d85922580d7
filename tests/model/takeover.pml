/* SPDX-License-Identifier: Apache-2.0
 *
 * Takeover: roles of two engine slots, condemn, epoch, fence, classify, promote, adopt, serve, over crashes of the
 * coordinators. Names in brackets are functions in coord/core. Joins and adoptions are one round here: agreement.pml
 * shows that such a call is decided alike everywhere.
 *
 * A process is an engine rank on one coordinator rank. It runs, and may write, until it is fenced there: that it died
 * earlier by itself would only make it do less. A bad fact may turn up in any round, on a healthy engine too (GONE,
 * STICKY, STALLED, COMMANDED and LEFT are one here).
 */
#define M 2
#ifndef INCARNATIONS
#define INCARNATIONS 3 /* joins in all; at most 6 */
#endif

/* Roles and the group's takeover: the tables in takeover.c. */
#define EMPTY 0
#define JOINED 1
#define PARKED 2
#define PROMOTED 3
#define SERVING 4
#define CONDEMNED 5

#define VACANT 0
#define FENCING 1
#define CLASSIFYING 2
#define PROMOTING 3
#define TAKEN 4 /* GMS_TAKEOVER_SERVING */

/* State: per engine 9 bits: role 3, incarnation 3, may_write 1, order in which it was parked 2; then takeover 3,
 * successor 2 (engine + 1), writer 3 (incarnation), epoch 3, incarnations given 3. */
#define FIELD(s, at, bits) (((s) >> (at)) & ((1 << (bits)) - 1))
#define ROLE(s, e) FIELD(s, (e) * 9, 3)
#define INCARNATION(s, e) FIELD(s, (e) * 9 + 3, 3)
#define MAY_WRITE(s, e) FIELD(s, (e) * 9 + 6, 1)
#define PARKED_AS(s, e) FIELD(s, (e) * 9 + 7, 2)
#define TAKEOVER(s) FIELD(s, 18, 3)
#define SUCCESSOR(s) FIELD(s, 21, 2)
#define WRITER(s) FIELD(s, 23, 3)
#define EPOCH(s) FIELD(s, 26, 3)
#define GIVEN(s) FIELD(s, 29, 3)
#define IS(s, e, role) (ROLE(s, e) == role)

/* Guards of this model. */
#define FENCE_BEFORE_PROMOTE (MUTATE != 5)
#define PARKED_ON_ALL (MUTATE != 6)
#define RETIRED_ON_ALL (MUTATE != 7)
#define CLASSIFY_AFTER_FENCE (MUTATE != 8)
#define CONDEMN_RAISES_EPOCH (MUTATE != 9)
#define FENCED_AGAIN (MUTATE != 10) /* after a crash RETIRED counts only for what this world has fenced */

/* Processes of a rank, 3 bits per engine, and what the rank knows of them, 2 bits per engine. */
#define NONE 0     /* not told of its incarnation yet; retired */
#define IS_PARKED 1 /* told its incarnation, and parked some time after that */
#define CHOSEN 2   /* told PROMOTE: may write from here on */
#define ADOPTED 3  /* told that it has adopted, awake: ready to serve */
#define SERVES 4   /* told that it serves */
int process[N] = 0;
byte facts[N] = 0;
#define PROCESS(q, e) FIELD(process[q], 3 * (e), 3)
#define RETIRED(q, e) FIELD(facts[q], 2 * (e), 1)
#define CLASSIFIED(q, e) FIELD(facts[q], 2 * (e) + 1, 1)
#define LOCAL_BEFORE(a, b) (process[a] < process[b] || (process[a] == process[b] && facts[a] < facts[b]))
#define ALIVE(s) ((s) != 0)

#include "world.pml"

byte condemned_told = 0; /* bit per incarnation that was fenced or told so */
byte serve_epoch = 0, serve_incarnation = 0; /* the last that was told to serve */
byte engine = 0;
bit bad0 = 0, bad1 = 0; /* chosen per round */

hidden byte role_[2], incarnation_[2], may_write_[2], order_[2];
hidden byte takeover_, successor_, writer_, epoch_, given_, e_, other_, moved_, fence_needed_;
hidden int state_;

inline swap_locals(a, b)
{
    t_ = process[a]; process[a] = process[b]; process[b] = t_;
    t_ = facts[a]; facts[a] = facts[b]; facts[b] = t_;
}

inline start_locals()
{
    for (i_ : 0 .. N - 1) {
        facts[i_] = (FENCED_AGAIN -> 0 : facts[i_] | 5)
    }
}

/* Here something always lives. */
inline new_life()
{
    skip
}

/* Nothing is half decided in a takeover: fences, classification and PROMOTE are repeated from the state. */
inline roll_back(state)
{
    skip
}

inline unpack()
{
    for (e_ : 0 .. 1) {
        role_[e_] = ROLE(latest, e_);
        incarnation_[e_] = INCARNATION(latest, e_);
        may_write_[e_] = MAY_WRITE(latest, e_);
        order_[e_] = PARKED_AS(latest, e_)
    }
    takeover_ = TAKEOVER(latest);
    successor_ = SUCCESSOR(latest);
    writer_ = WRITER(latest);
    epoch_ = EPOCH(latest);
    given_ = GIVEN(latest)
}

inline pack()
{
    for (e_ : 0 .. 1) { /* only an order among those that are parked means something */
        if
        :: role_[e_] != PARKED -> order_[e_] = 0
        :: else
        fi
    }
    for (e_ : 0 .. 1) {
        if
        :: order_[e_] == 2 && order_[1 - e_] == 0 -> order_[e_] = 1
        :: else
        fi
    }
    state_ = 0;
    for (e_ : 0 .. 1) {
        state_ = state_ | (role_[e_] << (e_ * 9)) | (incarnation_[e_] << (e_ * 9 + 3)) | (may_write_[e_] << (e_ * 9 + 6)) |
                 (order_[e_] << (e_ * 9 + 7))
    }
    state_ = state_ | (takeover_ << 18) | (successor_ << 21) | (writer_ << 23) | (epoch_ << 26) | (given_ << 29)
}

/* [condemn] */
inline condemn()
{
    may_write_[e_] = (role_[e_] == PROMOTED || role_[e_] == SERVING || incarnation_[e_] == writer_);
    role_[e_] = CONDEMNED;
    if
    :: CONDEMN_RAISES_EPOCH && (may_write_[e_] || successor_ == e_ + 1) -> epoch_++
    :: else
    fi;
    if
    :: successor_ == e_ + 1 -> successor_ = 0
    :: else
    fi
}

/* [retire] */
inline retire()
{
    role_[e_] = EMPTY;
    incarnation_[e_] = 0;
    may_write_[e_] = 0
}

/* [candidate] */
inline choose_successor()
{
    for (i_ : 0 .. 1) {
        if
        :: role_[i_] == PARKED && (successor_ == 0 || order_[i_] < order_[successor_ - 1]) -> successor_ = i_ + 1
        :: else
        fi
    }
}

/* [advance, takeover_rows, enter] */
inline advance()
{
    do
    :: moved_ = 0;
       if
       :: successor_ == 0 && (takeover_ == VACANT || takeover_ == FENCING) -> choose_successor()
       :: else
       fi;
       fence_needed_ = FENCE_BEFORE_PROMOTE && ((role_[0] == CONDEMNED && may_write_[0]) || (role_[1] == CONDEMNED && may_write_[1]));
       if
       :: (takeover_ == VACANT || takeover_ == PROMOTING || takeover_ == TAKEN) && fence_needed_ ->
          takeover_ = FENCING; moved_ = 1
       :: !fence_needed_ && !FENCE_BEFORE_PROMOTE && (takeover_ == PROMOTING || takeover_ == TAKEN) && successor_ == 0 &&
          role_[0] != SERVING && role_[1] != SERVING -> takeover_ = VACANT; moved_ = 1 /* the mutation fences nobody */
       :: (takeover_ == VACANT || (takeover_ == FENCING && !fence_needed_)) && successor_ != 0 && !moved_ ->
          takeover_ = (writer_ == 0 -> PROMOTING : CLASSIFYING); moved_ = 1
       :: takeover_ == FENCING && !fence_needed_ && successor_ == 0 -> takeover_ = VACANT; moved_ = 1
       :: takeover_ == CLASSIFYING && successor_ == 0 -> takeover_ = VACANT; moved_ = 1
       :: takeover_ == CLASSIFYING && successor_ != 0 ->
          moved_ = 1;
          for (i_ : 0 .. N - 1) {
              moved_ = moved_ && CLASSIFIED(i_, successor_ - 1)
          }
          takeover_ = (moved_ -> PROMOTING : CLASSIFYING)
       :: takeover_ == PROMOTING && !fence_needed_ && successor_ != 0 ->
          moved_ = 1;
          for (i_ : 0 .. N - 1) {
              moved_ = moved_ && PROCESS(i_, successor_ - 1) == ADOPTED
          }
          takeover_ = (moved_ -> TAKEN : PROMOTING)
       :: else
       fi;
       if
       :: moved_ && takeover_ == PROMOTING -> /* [enter_promoting] */
          epoch_ = (writer_ == 0 -> epoch_ + 1 : epoch_);
          role_[successor_ - 1] = PROMOTED
       :: moved_ && takeover_ == TAKEN -> /* [enter_serving] */
          role_[successor_ - 1] = SERVING;
          successor_ = 0
       :: !moved_ -> break
       :: else
       fi
    od
}

/* [gms_core_facts] The facts lane of a round: level-triggered facts of all ranks, bad ones as chosen. */
inline facts_lane()
{
    other_ = 0; /* those parked in this round are parked equally early */
    for (e_ : 0 .. 1) {
        other_ = (role_[e_] == PARKED -> 1 : other_)
    }
    for (e_ : 0 .. 1) {
        if
        :: role_[e_] == JOINED ->
           moved_ = PARKED_ON_ALL;
           for (i_ : 0 .. N - 1) {
               moved_ = (PARKED_ON_ALL -> moved_ && PROCESS(i_, e_) >= IS_PARKED : moved_ || PROCESS(i_, e_) >= IS_PARKED)
           }
           if
           :: moved_ -> role_[e_] = PARKED; order_[e_] = 1 + other_
           :: else
           fi
        :: else
        fi;
        if
        :: role_[e_] == CONDEMNED ->
           moved_ = RETIRED_ON_ALL;
           for (i_ : 0 .. N - 1) {
               moved_ = (RETIRED_ON_ALL -> moved_ && RETIRED(i_, e_) : moved_ || RETIRED(i_, e_))
           }
           if
           :: moved_ -> retire()
           :: else
           fi
        :: role_[e_] != EMPTY && role_[e_] != CONDEMNED && ((e_ == 0 && bad0) || (e_ == 1 && bad1)) -> condemn()
        :: else
        fi
    }
    advance()
}

/* No more than one engine has a process that may write; condemned is for ever; what was told is decided, for ever. */
#define WRITES(q, e) (PROCESS(q, e) >= CHOSEN)
#define WRITES_0(q) WRITES(q, 0)
#define WRITES_1(q) WRITES(q, 1)
#define TWO_WRITE (ON_ANY(WRITES_0) && ON_ANY(WRITES_1))
#define HAS_SERVES_0(q) (PROCESS(q, 0) == SERVES)
#define HAS_SERVES_1(q) (PROCESS(q, 1) == SERVES)
#define LIVES(e) (!IS(latest, e, EMPTY) && !IS(latest, e, CONDEMNED))
#define UNDONE(e) (up && LIVES(e) && ((condemned_told >> INCARNATION(latest, e)) & 1))
#define UNCONDEMNED (UNDONE(0) || UNDONE(1))
#define BARE(q, e)                                                                                                     \
    (up && ((PROCESS(q, e) > NONE && IS(latest, e, EMPTY)) ||                                                         \
            (PROCESS(q, e) >= CHOSEN && ROLE(latest, e) < PROMOTED) || (PROCESS(q, e) == SERVES && ROLE(latest, e) < SERVING)))
#define BARE_0(q) BARE(q, 0)
#define BARE_1(q) BARE(q, 1)
#define FORGOTTEN (ON_ANY(BARE_0) || ON_ANY(BARE_1) || (up && EPOCH(latest) < serve_epoch))

inline end_step()
{
    assert(!TWO_WRITE);
    assert(!UNCONDEMNED);
    assert(!FORGOTTEN);
    engine = 0;
    bad0 = 0;
    bad1 = 0;
    tidy()
}

#define set_process(q, e, to) process[q] = (process[q] & ~(7 << (3 * (e)))) | ((to) << (3 * (e)))

#define BUSY (TAKEOVER(latest) == FENCING || TAKEOVER(latest) == CLASSIFYING || TAKEOVER(latest) == PROMOTING)
#define MAY_JOIN (IS(latest, engine, EMPTY) && !BUSY && GIVEN(latest) < INCARNATIONS && (GIVEN(latest) > 0 || engine == 0))
#define IS_CHOSEN(q) (PROCESS(q, engine) == CHOSEN)
#define MAY_ADOPT (IS(latest, engine, PROMOTED) && WRITER(latest) != INCARNATION(latest, engine) && ON_ALL(IS_CHOSEN))

/* What rank q has stored says so, and its memory does not contradict it. */
#define SHOWS(q, role) (MAY_SHOW(q) && IS(SHOWN(q), engine, role))
#define SAME(q) (INCARNATION(SHOWN(q), engine) == INCARNATION(MEMORY(q), engine))
#define STILL(q, role) (SHOWS(q, role) && IS(MEMORY(q), engine, role) && SAME(q))
#define KNOWS_JOIN(q) (MAY_SHOW(q) && ROLE(SHOWN(q), engine) >= JOINED && ROLE(SHOWN(q), engine) <= SERVING)
#define HAS_ADOPTED(q) (MAY_SHOW(q) && IS(SHOWN(q), engine, PROMOTED) && WRITER(SHOWN(q)) == INCARNATION(SHOWN(q), engine))

/* [gms_core_classify] This rank's memory: a suspect that is not retired here may still write. */
#define SUSPECT(q, e) (CLASSIFY_AFTER_FENCE && IS(MEMORY(q), e, CONDEMNED) && MAY_WRITE(MEMORY(q), e) && !RETIRED(q, e))
#define MAY_CLASSIFY(q)                                                                                                \
    (IN_WORLD(q) && SUCCESSOR(MEMORY(q)) == engine + 1 && WRITER(MEMORY(q)) != 0 && !CLASSIFIED(q, engine) &&          \
     (TAKEOVER(MEMORY(q)) == FENCING || TAKEOVER(MEMORY(q)) == CLASSIFYING) && !SUSPECT(q, 0) && !SUSPECT(q, 1))

active proctype group()
{
end:
    do
    :: atomic { /* a round */
        ROUND_CAN_END ->
        if
        :: bad0 = 0
        :: LIVES(0) -> bad0 = 1
        fi;
        if
        :: bad1 = 0
        :: LIVES(1) -> bad1 = 1
        fi;
        if
        :: engine = 0
        :: engine = 1
        :: engine = 2 /* no call ends in this round */
        fi;
        d_step {
            unpack();
            facts_lane();
            if
            :: engine < 2 ->
               if
               :: MAY_JOIN && takeover_ != FENCING && takeover_ != CLASSIFYING && takeover_ != PROMOTING -> /* [commit_join] */
                  given_++;
                  role_[engine] = JOINED;
                  incarnation_[engine] = given_
               :: MAY_ADOPT && role_[engine] == PROMOTED -> /* [decide_commit] */
                  writer_ = incarnation_[engine]
               :: else
               fi
            :: else
            fi;
            pack();
            if
            :: state_ != latest ->
               printf("round: roles %d %d, incarnations %d %d, ", role_[0], role_[1], incarnation_[0], incarnation_[1]);
               printf("takeover %d, successor %d, writer %d, epoch %d\n", takeover_, successor_ - 1, writer_, epoch_);
               round_ends(state_)
            :: else
            fi;
            end_step()
        }
    }
    :: atomic { /* a rank does something by itself */
        up ->
        choose_rank();
        if
        :: engine = 0
        :: engine = 1
        fi;
        if
        :: !applied[r] -> /* [round_done] */
            d_step {
                printf("rank %d applies the round\n", r);
                apply_round();
                for (e_ : 0 .. 1) {
                    if
                    :: IS(latest, e_, EMPTY) -> facts[r] = facts[r] & ~(3 << (2 * e_))
                    :: else
                    fi
                }
                end_step()
            }
        :: CAN_STORE(r) -> /* [gms_core_stored] */
            d_step { printf("rank %d stores its state\n", r); store_snapshot(); end_step() }
        :: KNOWS_JOIN(r) && PROCESS(r, engine) == NONE && !RETIRED(r, engine) -> /* [gms_core_outcome_stored] */
            d_step { printf("rank %d tells engine %d its incarnation; it parks\n", r, engine); set_process(r, engine, IS_PARKED); end_step() }
        :: STILL(r, PROMOTED) && PROCESS(r, engine) < CHOSEN && !RETIRED(r, engine) -> /* [gms_core_epoch_stored] */
            d_step {
                printf("rank %d tells engine %d that it is promoted\n", r, engine);
                assert(PROCESS(r, engine) == IS_PARKED);
                set_process(r, engine, CHOSEN);
                end_step()
            }
        :: HAS_ADOPTED(r) && PROCESS(r, engine) == CHOSEN -> /* [gms_core_outcome_stored], then READY [gms_core_fact] */
            d_step { printf("rank %d tells engine %d that it has adopted\n", r, engine); set_process(r, engine, ADOPTED); end_step() }
        :: STILL(r, SERVING) && PROCESS(r, engine) == ADOPTED -> /* [gms_core_serving_stored] */
            d_step {
                printf("rank %d tells engine %d that it serves, epoch %d\n", r, engine, EPOCH(SHOWN(r)));
                set_process(r, engine, SERVES);
                /* one serving engine per epoch */
                assert(EPOCH(SHOWN(r)) > serve_epoch ||
                       (EPOCH(SHOWN(r)) == serve_epoch && INCARNATION(SHOWN(r), engine) == serve_incarnation));
                serve_epoch = EPOCH(SHOWN(r));
                serve_incarnation = INCARNATION(SHOWN(r), engine);
                end_step()
            }
        :: SHOWS(r, CONDEMNED) && SAME(r) && !RETIRED(r, engine) -> /* [gms_core_condemned_stored], then RETIRED [gms_core_fact] */
            d_step {
                printf("rank %d fences engine %d\n", r, engine);
                set_process(r, engine, NONE);
                facts[r] = facts[r] | (1 << (2 * engine));
                condemned_told = condemned_told | (1 << INCARNATION(SHOWN(r), engine));
                end_step()
            }
        :: MAY_CLASSIFY(r) ->
            d_step {
                printf("rank %d classifies for engine %d\n", r, engine);
                assert(!WRITES(r, 0) && !WRITES(r, 1)); /* nobody writes what is being classified */
                facts[r] = facts[r] | (2 << (2 * engine));
                end_step()
            }
        :: else -> d_step { engine = 0; r = 0 }
        fi
    }
    world_steps()
    od
}

#ifdef WITNESS
#if WITNESS == 1 /* the third incarnation serves, after as many crashes as there may be */
ltl witness { [] !(crashes == CRASHES && serve_incarnation == INCARNATIONS) }
#elif WITNESS == 2 /* a crash in the middle of a classification */
ltl witness { [] !(up && crashes == CRASHES && TAKEOVER(latest) == CLASSIFYING) }
#elif WITNESS == 3 /* a promoted successor dies, and another one serves */
ltl witness { [] !(serve_incarnation == INCARNATIONS && serve_epoch == INCARNATIONS) }
#endif
#else
ltl one_writer { [] !TWO_WRITE }
ltl condemned_for_ever { [] !UNCONDEMNED }
/* Whoever serves was not condemned before, in any world. */
ltl no_return { [] ((condemned_told & 2) -> [] !(up && ((INCARNATION(latest, 0) == 1 && LIVES(0)) || (INCARNATION(latest, 1) == 1 && LIVES(1))))) }
#endif
