# SPDX-License-Identifier: Apache-2.0
"""An engine rank for python_tails.sh: the first begins a block and says how far it is; the next goes on in its middle.

What came of it is one line in `result.<engine>.<rank>` of the directory given as --log-dir.
"""
import os
import signal
import sys

sys.path.insert(0, os.environ["GMS_PY"])
import gms  # noqa: E402

SLOTS, PLANES, POSITIONS, POSITION = 32, 4, 16, 32
PLANE, BLOCK = POSITIONS * POSITION, PLANES * POSITIONS * POSITION
PARENT, DONE = bytes(range(16)), 7
ENDINGS = {signal.SIGUSR1, signal.SIGTERM}


def key(count):
    return bytes([count] * 16)


def byte(plane, position, rank):
    return 1 + (plane * 50 + position * 3 + rank) % 250


def place(slot, plane, position):
    return slot * BLOCK + plane * PLANE + position * POSITION


def begin(session, kv, rank):
    """A block of DONE positions, and one more in a step that does not end."""
    generation = kv.acquire(5)
    for count in range(1, DONE + 2):
        token = session.step_begin()
        for plane in range(PLANES):
            at = place(5, plane, count - 1)
            kv.memory()[at:at + POSITION] = bytes([byte(plane, count - 1, rank)]) * POSITION
        if count > DONE:
            assert not kv.note(5, generation, key(count), PARENT, count, token), "a step that is not complete counts"
            break
        session.step_complete(token)
        assert kv.note(5, generation, key(count), PARENT, count, token), "a complete step does not count"
    return f"begun {DONE}"


def go_on(kv, rank):
    tails = list(kv.tails())
    assert len(tails) == 1, f"{len(tails)} tails"
    tail = tails[0]
    assert (tail.slot, tail.parent) == (5, PARENT), tail
    assert tail.entries == tuple((count, key(count)) for count in (DONE, DONE - 1, DONE - 2)), tail

    def copier(to, source, pitch, width, rows):
        for row in range(rows):
            kv.memory()[to + row * pitch:to + row * pitch + width] = \
                bytes(kv.memory()[source + row * pitch:source + row * pitch + width])

    def broken(*_):
        raise RuntimeError("no such stream")

    for slot, (count, _), copy in zip((20, 21, 22), tail.entries, (None, copier, None)):
        generation = kv.acquire(slot)
        kv.memory()[slot * BLOCK:(slot + 1) * BLOCK] = bytes([0xfe]) * BLOCK
        kv.salvage(tail, count, slot, generation, copy)
        for plane in range(PLANES):
            for position in range(POSITIONS):
                at = place(slot, plane, position)
                wanted = byte(plane, position, rank) if position < count else 0xfe
                assert bytes(kv.memory()[at:at + POSITION]) == bytes([wanted]) * POSITION, (slot, plane, position)
    generation = kv.acquire(23)
    for wrong, status, copy in ((tail, 5, broken), (gms.Tail(6, 1, PARENT, tail.entries), gms.STALE, None),
                                (gms.Tail(5, tail.generation, bytes(16), tail.entries), gms.NOT_FOUND, None)):
        try:
            kv.salvage(wrong, DONE, 23, generation, copy)
        except gms.GmsError as error:
            assert error.status == status or copy is broken, error
            assert copy is not broken or isinstance(error.__cause__, RuntimeError), error
        else:
            raise AssertionError(f"{wrong} was salvaged")
    return f"salvaged {' '.join(str(count) for count, _ in tail.entries)}"


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    directory = sys.argv[sys.argv.index("--log-dir") + 1]
    session = gms.Session()
    member = session.join(gms.Identity("tails@1", "u8", "plane-position", "count", "python_tails", "1", 0, POSITIONS,
                                       int(os.environ["GMS_WORLD_SIZE"])))
    assert session.parking_preset == "shadow_failover", session.parking_preset
    assert session.kv_budget() >= SLOTS * BLOCK, session.kv_budget()
    kv = session.kv("kv", SLOTS, BLOCK)
    kv.tail_layout(PLANES, POSITION, PLANE)
    session.park()
    while session.wait_promotion(200) is None:
        if signal.sigpending() & ENDINGS:
            session.close()
            return
    adoption = session.adopt()
    session.wake()
    session.serve(f"unix:{directory}/none" if member.rank == 0 else None)
    try:
        outcome = begin(session, kv, member.rank) if adoption.quarantined == 0 else go_on(kv, member.rank)
    except Exception as error:  # told, whoever reads standard error
        outcome = f"failed: {type(error).__name__}: {error}"
    path = os.path.join(directory, f"result.{member.engine_id}.{member.rank}")
    with open(path + ".new", "w", encoding="utf-8") as file:
        print(outcome, file=file)
    os.rename(path + ".new", path)
    signal.sigwait(ENDINGS)
    session.close()


main()
