# SPDX-License-Identifier: Apache-2.0
"""Parts of examples/pytorch that need neither PyTorch nor a deployment: what is refused, slots and unfinished blocks, ranks."""
import os
import signal
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "pytorch"))
import gms  # noqa: E402
from endings import Endings  # noqa: E402
from ranks import EXIT_PEER_LOST, Ranks  # noqa: E402
from scheduler import NO_BLOCK, Request, Scheduler, Slots, block_hash, sample  # noqa: E402
from server import tokens_of  # noqa: E402

SIZE = 4


def block(slot, parent, tokens):
    return gms.Block(block_hash(parent, tokens), parent, len(tokens), slot, 7)


class Quiet:
    def __call__(self, text):
        pass

    @staticmethod
    def word(text):
        return text


class Client:
    def __init__(self):
        self.said = []

    def say(self, line):
        self.said.append(line)


class Machine:
    """Carries plans out: the next token is the last one plus one. Insists on what every rank insists on."""

    def __init__(self, idle):
        self.idle, self.leased, self.salvaged, self.sealed, self.noted = set(idle), set(), [], {}, {}

    def run(self, plan, meanwhile):
        for slot in plan["release"]:
            self.leased.remove(slot)
            self.idle.add(slot)
        for slot in plan["acquire"]:
            self.idle.remove(slot)
            self.leased.add(slot)
        for source, slot, count in plan["salvage"]:
            assert slot in self.leased and source not in self.leased
            self.salvaged.append((source, slot, count))
        if not plan["rows"]:
            return None
        for _, position, slots in plan["rows"]:
            assert slots[position // SIZE] in self.leased
        after = meanwhile()
        for slot, key, _, _ in after["seal"]:
            self.sealed[key] = slot
        for slot, key, _, count in after["note"]:
            self.noted[slot] = (key, count)
        return [Logits((token + 1) % 256) for token, _, _ in plan["rows"]]


class Logits(list):
    def __init__(self, best):
        super().__init__(float(i == best) for i in range(256))

    def tolist(self):
        return self


class Refusals(unittest.TestCase):
    def test_a_tensor_that_changes_cannot_be_among_weights(self):
        pool = gms.Pool.__new__(gms.Pool)
        pool._kind = gms.WEIGHTS
        with self.assertRaisesRegex(gms.GmsError, "mapped for reading"):
            pool.tensor(0, (1,), None, mutable=True)

    def test_endings(self):
        endings = Endings(None)
        endings.check({"at": "seal", "after": 1, "how": "exit"})
        for wrong in ({"at": "sleep", "after": 1}, {"at": "seal", "after": 0}, {"at": "seal"}, {"at": "seal", "after": True},
                      {"at": "seal", "after": 1, "how": "illegal-address"}, {"at": "decode", "after": 1, "how": "smile"}):
            with self.assertRaises(ValueError, msg=wrong):
                endings.check(wrong)

    def test_the_third_pass(self):
        came = []
        endings = Endings(lambda: came.append(True))
        endings.arm({"at": "decode", "after": 3, "how": "illegal-address"})
        for turn in range(5):
            endings.pass_through("decode")
            endings.pass_through("prefill")
            self.assertEqual(len(came), int(turn >= 2))

    def test_tokens(self):
        self.assertEqual(tokens_of("a\u01ff"), [97, 255])
        with self.assertRaises(ValueError):
            tokens_of([256])


class Adoption(unittest.TestCase):
    def setUp(self):
        self.prompt = list(range(10))
        first = block(0, NO_BLOCK, self.prompt[:4])
        self.blocks = [first, block(1, first.hash, self.prompt[4:8])]
        key = block_hash(self.blocks[1].hash, self.prompt[8:9])
        longer = block_hash(self.blocks[1].hash, self.prompt[8:10] + [99])
        self.tail = gms.Tail(5, 7, self.blocks[1].hash, ((3, longer), (1, key)))

    def serve(self, free, tails):
        slots, machine, client = Slots(), Machine(free), Client()
        slots.adopt(self.blocks, free, tails, {tail.slot for tail in tails} - set(free))
        machine.leased |= {0, 1}
        scheduler = Scheduler(8, SIZE, machine.run, slots, Quiet())
        scheduler.submit(Request(client, {"id": "x"}, list(self.prompt), 0, 14))
        while scheduler.step():
            pass
        self.assertEqual([line["token"] for line in client.said[:-1]], [10, 11, 12, 13])
        return slots, machine, client.said[-1]

    def test_blocks_and_the_unfinished_one_are_taken_up(self):
        _, machine, end = self.serve([2, 3], [self.tail])
        self.assertEqual((end["cached_tokens"], end["salvaged_tokens"], end["computed_tokens"]), (8, 1, 1))
        self.assertEqual(machine.salvaged, [(5, 2, 1)])
        self.assertEqual(machine.noted[3], (block_hash(bytes.fromhex(next(
            key for key, slot in machine.sealed.items() if slot == 2)), [12]).hex(), 1))

    def test_what_does_not_begin_alike_is_computed(self):
        other = gms.Tail(5, 7, self.blocks[1].hash, ((1, bytes(range(16))),))
        _, machine, end = self.serve([2, 3], [other])
        self.assertEqual((end["cached_tokens"], end["salvaged_tokens"], end["computed_tokens"]), (8, 0, 2))
        self.assertEqual(machine.salvaged, [])

    def test_a_tail_whose_slot_is_free_already_is_not_taken_up(self):
        _, machine, end = self.serve([5, 2, 3], [self.tail])
        self.assertEqual((end["cached_tokens"], end["salvaged_tokens"], end["computed_tokens"]), (8, 0, 2))
        self.assertEqual(machine.salvaged, [])

    def test_a_slot_that_came_back_leaves_nothing(self):
        slots = Slots()
        slots.adopt(self.blocks, [2], [self.tail], [5])
        self.assertEqual(slots.quarantined, 1)
        self.assertIsNotNone(slots.find_tail(self.blocks[1].hash, self.prompt[8:]))
        slots.returned(5)
        self.assertIsNone(slots.find_tail(self.blocks[1].hash, self.prompt[8:]))
        self.assertEqual((list(slots.free), slots.quarantined), ([2, 5], 0))
        for slot in (5, 2):  # back already when all slots were looked at, or told twice
            slots.returned(slot)
        self.assertEqual((list(slots.free), slots.quarantined), ([2, 5], 0))

    def test_the_deepest_block_is_evicted_first(self):
        slots = Slots()
        slots.adopt(self.blocks, [], [], [])
        self.assertEqual([slots.allocate(), slots.allocate()], [1, 0])
        self.assertEqual((slots.to_release, slots.cached), ([1, 0], {}))

    def test_a_ring_of_parents_ends(self):
        a, b = gms.Block(b"a" * 16, b"b" * 16, 4, 0, 1), gms.Block(b"b" * 16, b"a" * 16, 4, 1, 1)
        slots = Slots()
        slots.adopt([a, b], [], [], [])
        self.assertEqual(slots.available(), 2)


class Sampling(unittest.TestCase):
    def test_of_logits_seed_and_index_alone(self):
        logits = [float(i % 7) for i in range(256)]
        drawn = [sample(logits, 0.9, 5, index) for index in range(200)]
        self.assertEqual(drawn, [sample(logits, 0.9, 5, index) for index in range(200)])
        self.assertNotEqual(drawn, [sample(logits, 0.9, 6, index) for index in range(200)])
        self.assertEqual(sample(logits, 0, 5, 0), 6)


class Together(unittest.TestCase):
    def fork(self, work):
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                code = work()
            except SystemExit:
                code = 98
            os._exit(code or 0)
        return pid

    def end(self, pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def test_plans_and_exchanges(self):
        start = f"test {os.getpid()} plans"

        def other(rank):
            ranks = Ranks(rank, 3, start)
            good = ranks.hear() == {"rows": [[1, 2, [3]]]}
            good &= ranks.exchange(bytes([rank]) * 4) == [bytes([r]) * 4 for r in range(3)]
            ranks.gather(bytes([rank]))
            return 0 if good else 1

        others = [self.fork(lambda rank=rank: other(rank)) for rank in (1, 2)]
        ranks = Ranks(0, 3, start)
        ranks.tell({"rows": [(1, 2, [3])]})
        self.assertEqual(ranks.exchange(b"\0" * 4), [bytes([r]) * 4 for r in range(3)])
        self.assertEqual(ranks.gather(b"\0"), [b"\0", b"\1", b"\2"])
        self.assertEqual([self.end(pid) for pid in others], [0, 0])

    def test_who_finds_another_gone_ends(self):
        start = f"test {os.getpid()} gone"

        def stays():
            ranks, limit = Ranks(0, 2, start), time.monotonic() + 10
            while time.monotonic() < limit:
                ranks.check()
            return 1

        def leaves():
            Ranks(1, 2, start)
            return 0

        first, second = self.fork(stays), self.fork(leaves)
        self.assertEqual(self.end(second), 0)
        self.assertEqual(self.end(first), EXIT_PEER_LOST)

    def test_one_rank_needs_nobody(self):
        ranks = Ranks(0, 1, "")
        ranks.tell({})
        ranks.check()
        self.assertEqual((ranks.exchange(b"x"), ranks.gather(b"y"), ranks.sockets), ([b"x"], [b"y"], []))


if __name__ == "__main__":
    unittest.main()
