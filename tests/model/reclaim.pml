/* SPDX-License-Identifier: Apache-2.0
 *
 * Reclaim: pages that a dead engine left in quarantine are stamped on all ranks, then freed when every suspect is proven quiet on every rank. Two phases, two collective decisions:
 *
 *   IN_USE --owner dies--> QUARANTINED --asked--> STAMPING --stamped and stored on all--> STAMPED --proof on all--> IN_USE
 *                               ^                    |  owner dies, or round 0                |     (of the new owner)
 *                               +--------------------+----------------------------------------+ owner dies (gpu-proof)
 *
 * Owners follow one another as takeover.pml shows: an owner's death is one round here, and its processes are retired on
 * all ranks before the next one owns. What is left of a dead owner is its GPU work in flight, which may write any page
 * that it was granted, on each rank until it is quiet there; nobody but the provider can tell.
 *
 * gpu-proof: nobody inherits; a successor stamps anew and needs its own proof of each suspect. With INHERIT
 * (process-death-timeout) a stamp stays and the next owner goes on; nothing is claimed about quiet then.
 */
#ifndef PAGES
#define PAGES 2
#endif
#ifndef OWNERS
#define OWNERS 3 /* incarnations that own the pool, one after another; at most 3 */
#endif

#define IN_USE 0
#define QUARANTINED 1
#define STAMPING 2
#define STAMPED 3

/* State: per page 5 bits: state 2, suspects 3 (bit per owner); owner 2 at bit 20. */
#define PAGE(s, p) (((s) >> (5 * (p))) & 3)
#define SUSPECTS(s, p) (((s) >> (5 * (p) + 2)) & 7)
#define OWNER(s) (((s) >> 20) & 3)
#define BIT(o) (1 << ((o) - 1))
#define WITH_PAGE(s, p, how, whom) (((s) & ~(31 << (5 * (p)))) | ((how) << (5 * (p))) | ((whom) << (5 * (p) + 2)))

/* Guards of this model. */
#define STAMP_FIRST (MUTATE != 5)
#define STAMP_ON_ALL (MUTATE != 6)
#define PROOF_ON_ALL (MUTATE != 7)
#define OWN_PROOF (MUTATE != 8) /* a proof is its owner's, and of the suspects that it was asked about */
#define EACH_SUSPECT (MUTATE != 9)
#define SILENCE_IS_NO_PROOF (MUTATE != 10)
#ifdef INHERIT
#define STAYS_STAMPED 1
#else
#define STAYS_STAMPED 0
#endif

/* Per rank and page: who may use it (owner, 2 bits), whose stamp it has (owner, 2 bits), proof (1 bit).
 * dirty: per page 3 bits, owners whose GPU work may still write it on this rank. */
int page[N] = 0;
int dirty[N] = 0;
#define USER(q, p) ((page[q] >> (5 * (p))) & 3)
#define STAMP(q, p) ((page[q] >> (5 * (p) + 2)) & 3)
#define PROOF(q, p) ((page[q] >> (5 * (p) + 4)) & 1)
#define DIRTY(q, p) ((dirty[q] >> (3 * (p))) & 7)
#define LOCAL_BEFORE(a, b) (page[a] < page[b] || (page[a] == page[b] && dirty[a] < dirty[b]))
#define ALIVE(s) (1)

#include "world.pml"

#define FIRST_STATE (1 << 20)
byte p = 0, asked = 0; /* chosen in each step */
hidden byte e_;

inline swap_locals(a, b)
{
    t_ = page[a]; page[a] = page[b]; page[b] = t_;
    t_ = dirty[a]; dirty[a] = dirty[b]; dirty[b] = t_;
}

inline forget_proofs(q)
{
    for (e_ : 0 .. PAGES - 1) {
        page[q] = page[q] & ~(16 << (5 * e_))
    }
}

/* A proof is a local fact: it goes with its rank. Stamps and slot words are in shared memory: they stay. */
inline start_locals()
{
    for (i_ : 0 .. N - 1) {
        if
        :: OWN_PROOF -> forget_proofs(i_)
        :: else
        fi
    }
}

/* Here something always lives. */
inline new_life()
{
    skip
}

/* A stamp that was being made is rolled back; its page stays in quarantine. */
inline roll_back(state)
{
    for (i_ : 0 .. PAGES - 1) {
        if
        :: PAGE(state, i_) == STAMPING -> state = WITH_PAGE(state, i_, QUARANTINED, SUSPECTS(state, i_))
        :: else
        fi
    }
}

/* The owner died and is retired on all ranks; the next one owns the pool. */
inline next_owner()
{
    t_ = latest;
    for (i_ : 0 .. PAGES - 1) {
        if
        :: PAGE(t_, i_) == IN_USE -> t_ = WITH_PAGE(t_, i_, QUARANTINED, SUSPECTS(t_, i_) | BIT(OWNER(latest)))
        :: PAGE(t_, i_) == STAMPING || (PAGE(t_, i_) == STAMPED && !STAYS_STAMPED) ->
           t_ = WITH_PAGE(t_, i_, QUARANTINED, SUSPECTS(t_, i_))
        :: else
        fi
    }
    t_ = t_ + (1 << 20);
    for (i_ : 0 .. N - 1) { /* its processes are gone everywhere; its GPU work is not */
        for (e_ : 0 .. PAGES - 1) {
            page[i_] = page[i_] & ~(3 << (5 * e_))
        }
    }
    round_ends(t_)
}

#define IS_STAMPED(q) (STAMP(q, p) == OWNER(latest) || (STAYS_STAMPED && STAMP(q, p) != 0))
#define HAS_VOTED(q) (STAMP(q, p) == OWNER(latest) && current[q])
#define HAS_PROOF(q) (PROOF(q, p))

#define MAY_STAMP(q)                                                                                                   \
    (MAY_SHOW(q) && PAGE(SHOWN(q), p) == STAMPING && PAGE(MEMORY(q), p) == STAMPING &&                                 \
     OWNER(SHOWN(q)) == OWNER(MEMORY(q)) && STAMP(q, p) != OWNER(MEMORY(q)))
/* The provider's answer for every suspect on this rank, asked after the stamp is stored. */
#define ASKED_ABOUT (EACH_SUSPECT -> SUSPECTS(SHOWN(r), p) : SUSPECTS(SHOWN(r), p) & BIT(OWNER(SHOWN(r)) - 1))
#define MAY_ASK(q)                                                                                                     \
    (MAY_SHOW(q) && (PAGE(SHOWN(q), p) == STAMPED || !STAMP_FIRST) && PAGE(MEMORY(q), p) == PAGE(SHOWN(q), p) &&       \
     OWNER(SHOWN(q)) == OWNER(MEMORY(q)) && !PROOF(q, p))
#define IS_QUIET (!SILENCE_IS_NO_PROOF || (DIRTY(r, p) & ASKED_ABOUT) == 0)
/* The process that is told lives; of a dead owner there is none. */
#define MAY_GRANT(q)                                                                                                   \
    (MAY_SHOW(q) && PAGE(SHOWN(q), p) == IN_USE && OWNER(SHOWN(q)) == OWNER(MEMORY(q)) && USER(q, p) == 0 &&            \
     OWNER(SHOWN(q)) == OWNER(latest))

/* A page that somebody uses is free in the group's state, and nobody else's work can write it, on any rank. */
#define UNQUIET(q, o) (DIRTY(q, p) & ~BIT(o) & 7)
#define CLEAN_FOR_OWNER(q) (STAYS_STAMPED || UNQUIET(q, OWNER(SHOWN(r))) == 0)
#define STRAY(q, x) (up && USER(q, x) != 0 && (PAGE(latest, x) != IN_USE || USER(q, x) != OWNER(latest)))
#define STRAY_0(q) STRAY(q, 0)
#define STRAY_1(q) STRAY(q, PAGES - 1)
#define ANY_STRAY (ON_ANY(STRAY_0) || ON_ANY(STRAY_1))
#define SHARED(q, x) (USER(q, x) != 0 && (((dirty[q] >> (3 * (x))) & 7) & ~BIT(USER(q, x))) != 0)
#define SHARED_0(q) SHARED(q, 0)
#define SHARED_1(q) SHARED(q, PAGES - 1)
#define TWO_WRITERS (!STAYS_STAMPED && (ON_ANY(SHARED_0) || ON_ANY(SHARED_1)))

inline end_step()
{
    assert(!ANY_STRAY);
    p = 0;
    asked = 0;
    tidy()
}

active proctype group()
{
    d_step { /* owner 1 has the pool */
        latest = FIRST_STATE;
        for (i_ : 0 .. N - 1) {
            stored[i_] = FIRST_STATE
        }
    }
end:
    do
    :: atomic { /* a round */
        ROUND_CAN_END ->
        if
        :: p = 0
        :: PAGES > 1 -> p = PAGES - 1
        fi;
        if
        :: OWNER(latest) < OWNERS -> d_step { printf("round: owner %d died\n", OWNER(latest)); next_owner(); end_step() }
        :: PAGE(latest, p) == QUARANTINED && STAMP_FIRST ->
            d_step { printf("round: page %d is to be stamped\n", p); round_ends(WITH_PAGE(latest, p, STAMPING, SUSPECTS(latest, p))); end_step() }
        :: PAGE(latest, p) == STAMPING && ((STAMP_ON_ALL && ON_ALL(HAS_VOTED)) || (!STAMP_ON_ALL && ON_ANY(HAS_VOTED))) ->
            d_step { printf("round: page %d is stamped\n", p); round_ends(WITH_PAGE(latest, p, STAMPED, SUSPECTS(latest, p))); end_step() }
        :: PAGE(latest, p) == STAMPING -> /* expired, or refused */
            d_step { printf("round: page %d is not stamped\n", p); round_ends(WITH_PAGE(latest, p, QUARANTINED, SUSPECTS(latest, p))); end_step() }
        :: (PAGE(latest, p) == STAMPED || (!STAMP_FIRST && PAGE(latest, p) == QUARANTINED)) &&
           ((PROOF_ON_ALL && ON_ALL(HAS_PROOF)) || (!PROOF_ON_ALL && ON_ANY(HAS_PROOF))) ->
            d_step {
                printf("round: page %d is free for owner %d\n", p, OWNER(latest));
                assert(ON_ALL(IS_STAMPED)); /* stamped on all ranks first */
                round_ends(WITH_PAGE(latest, p, IN_USE, 0));
                end_step()
            }
        :: else -> p = 0
        fi
    }
    :: atomic { /* a rank does something by itself */
        up ->
        choose_rank();
        if
        :: p = 0
        :: PAGES > 1 -> p = PAGES - 1
        fi;
        if
        :: !applied[r] ->
            d_step {
                printf("rank %d applies the round\n", r);
                for (i_ : 0 .. PAGES - 1) { /* proofs were of the stamp that they followed */
                    if
                    :: OWN_PROOF && before != NOWHERE && (PAGE(latest, i_) != PAGE(before, i_) || OWNER(latest) != OWNER(before)) ->
                       page[r] = page[r] & ~(16 << (5 * i_))
                    :: else
                    fi
                }
                apply_round();
                end_step()
            }
        :: CAN_STORE(r) -> d_step { printf("rank %d stores its state\n", r); store_snapshot(); end_step() }
        :: MAY_STAMP(r) ->
            d_step {
                printf("rank %d stamps page %d\n", r, p);
                page[r] = (page[r] & ~(12 << (5 * p))) | (OWNER(MEMORY(r)) << (5 * p + 2));
                end_step()
            }
        :: MAY_ASK(r) && IS_QUIET ->
            d_step { printf("rank %d has its proof for page %d\n", r, p); page[r] = page[r] | (16 << (5 * p)); end_step() }
        :: MAY_GRANT(r) ->
            d_step {
                printf("rank %d grants page %d to owner %d\n", r, p, OWNER(SHOWN(r)));
                assert(ON_ALL(CLEAN_FOR_OWNER)); /* every suspect was quiet on every rank */
                page[r] = page[r] | (OWNER(SHOWN(r)) << (5 * p));
                dirty[r] = dirty[r] | (BIT(OWNER(SHOWN(r))) << (3 * p));
                end_step()
            }
        :: else -> d_step { p = 0; r = 0 }
        fi
    }
    :: atomic { /* the GPU work of a dead owner has ended on a rank, at any time, world or not */
        choose_rank();
        if
        :: asked = 1
        :: asked = 2
        fi;
        if
        :: asked < (up -> OWNER(latest) : OWNER(stored[r])) && ((dirty[r] & (BIT(asked) * 73 /* in every page */)) != 0) ->
            d_step { printf("owner %d is quiet on rank %d\n", asked, r); dirty[r] = dirty[r] & ~(BIT(asked) * 73); end_step() }
        :: else -> d_step { asked = 0; r = 0 }
        fi
    }
    world_steps()
    od
}

#ifdef WITNESS
#define USES_LAST(q) (USER(q, 0) == OWNERS && USER(q, PAGES - 1) == OWNERS)
#if WITNESS == 1 /* the last owner has got back all pages, after all crashes */
ltl witness { [] !(crashes == CRASHES && ON_ALL(USES_LAST)) }
#elif WITNESS == 2 /* a successor died between the phases, and what it had stamped became free for the next */
ltl witness { [] !(up && OWNER(latest) == 3 && PAGE(latest, 0) == IN_USE && STAMP(0, PAGES - 1) == 2 && PAGE(latest, PAGES - 1) == QUARANTINED) }
#endif
#else
ltl one_user { [] !TWO_WRITERS }
ltl free_is_decided { [] !ANY_STRAY }
#endif
