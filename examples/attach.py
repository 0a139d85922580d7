#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An engine rank in Python: the whole life with libgms through ctypes, without the inference.

    mpirun -n 2 gms-exec --run-dir DIR --engine 0 -- python3 attach.py       the first start serves
    mpirun -n 2 gms-exec --run-dir DIR --engine 1 -- python3 attach.py       the second stands by; kill one of the first

LIBGMS names the library (default: libgms.so.0). include/gms/engine.h says what every call means and may answer.
The "model" is 64 bytes of weights, the "KV cache" 16 slots; block n is filled with the byte n + 1. A successor finds
the blocks of the dead engine by hash and checks their bytes. SIGUSR1 or SIGTERM ends it cleanly.
"""
import ctypes as c
import os
import signal
import sys

SLOTS, BLOCK_BYTES, BLOCKS, WEIGHT_BYTES = 16, 4096, 4, 64
TIMEOUT, NOT_FOUND, DISCONNECTED = 3, 6, 200  # gms/status.h


def structure(name, *fields):
    return type(name, (c.Structure,), {"_fields_": list(fields)})


u32, u64, text = c.c_uint32, c.c_uint64, c.c_char_p
Error = structure("Error", ("status", c.c_int), ("rank", c.c_int32), ("text", c.c_char * 512))
Identity = structure("Identity", ("model", text), ("dtype", text), ("layout", text), ("hash_algorithm", text),
                     ("engine_name", text), ("engine_version", text), ("hash_seed", u64), ("block_tokens", u32),
                     ("world_size", u32))
Membership = structure("Membership", ("world", u64), ("incarnation", u64), ("epoch", u64), ("rank", u32),
                       ("world_size", u32), ("engine_id", u32), ("kv_verify_full", u32))
Pool = structure("Pool", ("name", c.c_char * 64), ("kind", u32), ("slot_count", u32), ("block_bytes", u64),
                 ("bytes", u64))
Promotion = structure("Promotion", ("epoch", u64), ("source_incarnation", u64))
Adoption = structure("Adoption", *[(name, u32) for name in ("adopted", "idle", "quarantined", "sealed_here", "bad_here")])
Part = structure("Part", ("pool", u32), ("slot", u32), ("generation", u64))
Block = structure("Block", ("hash", c.c_uint8 * 16), ("parent_hash", c.c_uint8 * 16), ("token_count", u32),
                  ("part_count", u32), ("parts", Part * 4))

gms = c.CDLL(os.environ.get("LIBGMS", "libgms.so.0"))
for function in (gms.gms_pool_address, gms.gms_status_text):
    function.restype = c.c_void_p if function is gms.gms_pool_address else c.c_char_p
gms.gms_step_begin.restype = u64
error = Error()
ending = []


def call(name, *arguments, allowed=()):
    """One call whose last parameter is ret_error. What is not allowed ends the engine: its group must know."""
    status = getattr(gms, name)(*arguments, c.byref(error))
    if status != 0 and status not in allowed:
        sys.exit(f"{name}: {error.text.decode()}")
    return status


def attach(session, **description):
    pool = c.c_void_p()
    call("gms_pool_attach", session, c.byref(Pool(**description)), c.byref(pool))
    return pool


def main():
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: ending.append(True))
    session, member = c.c_void_p(), Membership()
    call("gms_open", None, c.byref(session))  # everything from the environment that gms-exec has set
    call("gms_join", session, c.byref(Identity(b"toy-1", b"u8", b"flat", b"number", b"attach.py", b"1", 0, 16,
                                               int(os.environ["GMS_WORLD_SIZE"]))), c.byref(member))

    def say(line):
        print(f"engine {member.engine_id} rank {member.rank}: {line}", flush=True)

    weights = attach(session, name=b"weights", kind=1, bytes=WEIGHT_BYTES)
    kv = attach(session, name=b"kv", kind=2, slot_count=SLOTS, block_bytes=BLOCK_BYTES)
    if gms.gms_pool_must_publish(weights):
        c.memset(gms.gms_pool_address(weights), 0x5A, WEIGHT_BYTES)
        call("gms_manifest_add", weights, b"all", u64(0), u64(WEIGHT_BYTES))
        call("gms_publish", weights)
    call("gms_park", session)
    say("parked")

    promotion, adoption = Promotion(), Adoption()
    while call("gms_wait_promotion", session, 500, c.byref(promotion), allowed=(TIMEOUT, DISCONNECTED)) != 0:
        if ending:
            gms.gms_close(session)
            return
    call("gms_adopt", session, c.byref(adoption))
    call("gms_wake", session)
    call("gms_serve", session, b"toy:" + str(os.getpid()).encode() if member.rank == 0 else None)

    found = 0
    for number in range(BLOCKS):
        address = gms.gms_pool_address(kv) + number * BLOCK_BYTES
        block, key = Block(), (c.c_uint8 * 16)(number + 1)
        if gms.gms_lookup(session, key, c.byref(block)) == 0:
            found += c.string_at(address, BLOCK_BYTES) == bytes([number + 1]) * BLOCK_BYTES
            continue
        generation = u64()
        if gms.gms_slot_acquire(kv, number, c.byref(generation)) != 0:
            continue  # quarantined: somebody may still write it
        token = gms.gms_step_begin(session)
        c.memset(address, number + 1, BLOCK_BYTES)  # here an engine computes
        gms.gms_step_complete(session, u64(token))
        block = Block(hash=key, token_count=16, part_count=1)
        block.parts[0] = Part(gms.gms_pool_index(kv), number, generation.value)
        status = gms.gms_block_seal(session, c.byref(block), u64(token))
        if status != 0:
            sys.exit(f"gms_block_seal: {gms.gms_status_text(status).decode()}")
    say(f"serves under epoch {promotion.epoch}, adopted {adoption.adopted} blocks, {found} found and right")
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1))
    while not ending and signal.sigtimedwait((signal.SIGTERM, signal.SIGUSR1), 1) is None:
        gms.gms_progress(session)
        # Lets messages in; after a restart of the coordinators this attaches the session again.
        call("gms_wait_promotion", session, 0, c.byref(promotion), allowed=(DISCONNECTED,))
    gms.gms_close(session)


main()
