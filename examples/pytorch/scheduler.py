# SPDX-License-Identifier: Apache-2.0
"""Rank 0's decisions: prefix cache, slots, and what a step does. libgms is asked nothing here; worker.py carries it out.

A plan is what one step does on every rank, in this order: release slots, acquire slots, salvage what a dead engine has left of
unfinished blocks, compute rows. What follows the step is chosen while the device computes: blocks to be sealed, and how far
unfinished ones have come.
"""
from __future__ import annotations

import collections
import hashlib
import math
from typing import Callable, Iterable

HASH_SEED, NO_BLOCK = 7, bytes(16)
HASH_ALGORITHM = "blake2b-128"
TOKENS = tuple((chr(t) if 0x20 <= t <= 0x7e or t == 10 else chr(0x100 + t)) for t in range(256))


def block_hash(parent: bytes, tokens: Iterable[int]) -> bytes:
    data = HASH_SEED.to_bytes(8, "little") + parent + b"".join(token.to_bytes(4, "little") for token in tokens)
    return hashlib.blake2b(data, digest_size=16).digest()


class Slots:
    """Free list, cached blocks by hash, reference counts; the least recently used cached block is evicted first."""

    def __init__(self) -> None:
        self.free: collections.deque = collections.deque()
        self.cached: dict[bytes, int] = {}  # hash: slot
        self._hash: dict[int, bytes] = {}
        self._references: collections.Counter = collections.Counter()
        self._idle: collections.OrderedDict = collections.OrderedDict()  # cached and not in use, oldest first
        self.to_release: list[int] = []
        self.to_acquire: list[int] = []
        self._tails: dict[bytes, list] = {}  # parent: what a dead engine has left of blocks behind it
        self._quarantined: set[int] = set()

    @property
    def quarantined(self) -> int:
        return len(self._quarantined)

    def adopt(self, blocks: list, free: Iterable[int], tails: list, quarantined: Iterable[int]) -> None:
        """`blocks` are the predecessor's; the deepest of a chain is evicted first. `tails` it had not finished: one whose
        slot is out of use no more may be overwritten."""
        self.free = collections.deque(free)
        self._quarantined = set(quarantined)
        for tail in (tail for tail in tails if tail.slot in self._quarantined):
            self._tails.setdefault(tail.parent, []).append(tail)
        depth, by_hash = {NO_BLOCK: 0}, {block.hash: block for block in blocks}
        for block in by_hash.values():
            path, key = [], block.hash
            while key not in depth:
                path.append(key)
                depth[key] = 0  # ends a ring, which only a broken directory could have
                key = by_hash[by_hash[key].parent].hash if by_hash[key].parent in by_hash else NO_BLOCK
            below = depth[key]
            for key in reversed(path):
                below += 1
                depth[key] = below
        for block in sorted(by_hash.values(), key=lambda b: (-depth[b.hash], b.slot)):
            self.cached[block.hash] = block.slot
            self._hash[block.slot] = block.hash
            self._idle[block.slot] = None

    def available(self) -> int:
        return len(self.free) + len(self._idle)

    def find(self, key: bytes) -> int | None:
        return self.cached.get(key)

    def use(self, slot: int) -> None:
        self._references[slot] += 1
        self._idle.pop(slot, None)

    def unuse(self, slot: int) -> None:
        self._references[slot] -= 1
        if self._references[slot] == 0:
            del self._references[slot]
            if slot in self._hash:
                self._idle[slot] = None
            else:
                self.to_release.append(slot)
                self.free.append(slot)

    def allocate(self) -> int:
        """A slot that this step is to acquire."""
        if self.free:
            slot = self.free.popleft()
        else:
            slot, _ = self._idle.popitem(last=False)
            del self.cached[self._hash.pop(slot)]
            self.to_release.append(slot)
        self._references[slot] = 1
        self.to_acquire.append(slot)
        return slot

    def find_tail(self, parent: bytes, tokens: list) -> tuple | None:
        """(slot, how many tokens) of the longest unfinished block that begins as `tokens` do."""
        best = None
        for tail in self._tails.get(parent, ()):
            for count, key in tail.entries:
                if count <= len(tokens) and (best is None or count > best[1]) and block_hash(parent, tokens[:count]) == key:
                    best = (tail.slot, count)
        return best

    def sealed(self, slot: int, key: bytes) -> None:
        self.cached[key] = slot
        self._hash[slot] = key

    def returned(self, slot: int) -> None:
        """It came back from quarantine; what was left there will be overwritten. Nothing new where it was back already when
        this looked at all slots."""
        if slot not in self._quarantined:
            return
        self._tails = {parent: [tail for tail in tails if tail.slot != slot] for parent, tails in self._tails.items()}
        self.free.append(slot)
        self._quarantined.remove(slot)


class Request:
    def __init__(self, client, message: dict, tokens: list, given: int, limit: int) -> None:
        self.client, self.id = client, message["id"]
        self.tokens, self.given = tokens, given  # prompt, what the client has already, what came since
        self.prompt, self.limit = len(tokens), limit  # of tokens in all
        self.temperature, self.seed = message.get("temperature", 0), message.get("seed", 0)
        self.text = message.get("text", False)
        self.slots: list[int] = []  # of blocks, in order
        self.keys: list[bytes] = []  # hashes of full ones
        self.done = self.cached = self.salvaged = 0  # tokens whose KV is there; of these, found; taken up

    def blocks(self, block_tokens: int) -> int:
        return -(-self.limit // block_tokens)


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & (1 << 64) - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (1 << 64) - 1
    return x ^ (x >> 31)


def sample(logits: list, temperature: float, seed: int, index: int) -> int:
    """Of the logits, the request's seed and the place in its answer, and of nothing else."""
    best = logits.index(max(logits))
    if not temperature > 0:
        return best
    top = logits[best]
    weights = [math.exp((value - top) / temperature) for value in logits]
    left = (mix(seed & (1 << 64) - 1 ^ mix(index)) >> 11) * 2.0**-53 * sum(weights)
    for token, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return token
    return best


class Scheduler:
    """Continuous batching: rows of one step are one token of each running request, or many of one that is prefilled."""

    def __init__(self, rows: int, block_tokens: int, run: Callable, slots: Slots, log) -> None:
        self._rows, self._size, self._run, self._slots, self._log = rows, block_tokens, run, slots, log
        self.waiting: collections.deque = collections.deque()
        self.running: list[Request] = []
        self._salvages: list[tuple] = []
        self.steps = 0

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    def has(self, client, key: str) -> bool:
        return any(r.client is client and r.id == key for r in (*self.running, *self.waiting))

    def cancel(self, client) -> None:
        """All requests of a client that is gone."""
        for request in [r for r in self.running if r.client is client]:
            self._finish(request)
        self.waiting = collections.deque(r for r in self.waiting if r.client is not client)

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        for slot in request.slots:
            self._slots.unuse(slot)
        request.slots = []

    def _admit(self) -> None:
        size = self._size
        while self.waiting:
            request, hits, parent = self.waiting[0], [], NO_BLOCK
            for start in range(0, len(request.tokens) - size, size):  # the last token is always computed
                key = block_hash(parent, request.tokens[start:start + size])
                slot = self._slots.find(key)
                if slot is None:
                    break
                hits.append((slot, key))
                parent = key
            promised = sum(r.blocks(size) - len(r.slots) for r in self.running)
            for slot, _ in hits:
                self._slots.use(slot)
            if len(self.running) == self._rows or \
                    request.blocks(size) - len(hits) + promised > self._slots.available():
                for slot, _ in hits:
                    self._slots.unuse(slot)
                return
            self.waiting.popleft()
            request.slots, request.keys = [slot for slot, _ in hits], [key for _, key in hits]
            request.done = request.cached = len(hits) * size
            self._take_up(request, parent)
            self.running.append(request)

    def _take_up(self, request: Request, parent: bytes) -> None:
        """What a dead engine had of the block that is next; at least the last token is computed."""
        behind = request.tokens[request.done:request.done + self._size][:len(request.tokens) - request.done - 1]
        found = self._slots.find_tail(parent, behind)
        if found is None:
            return
        source, count = found
        request.slots.append(self._slots.allocate())
        self._salvages.append((source, request.slots[-1], count))
        request.done += count
        request.salvaged = count

    def _shares(self) -> list[tuple[Request, int]]:
        """How many rows each request gets: at least one, the first ones as many as they can use."""
        shares, left = [], self._rows
        for index, request in enumerate(self.running):
            others = len(self.running) - index - 1
            count = max(1, min(left - others, len(request.tokens) - request.done))
            shares.append((request, count))
            left -= count
        return shares

    def _after(self, shares: list[tuple[Request, int]]) -> dict:
        """What follows the step. A second copy of a block that is cached stays private."""
        size, seals, notes, chosen = self._size, [], [], set()
        for request, count in shares:
            done = request.done + count
            while (len(request.keys) + 1) * size <= done:
                index = len(request.keys)
                parent = request.keys[-1] if request.keys else NO_BLOCK
                key = block_hash(parent, request.tokens[index * size:(index + 1) * size])
                request.keys.append(key)
                if key not in self._slots.cached and key not in chosen:
                    chosen.add(key)
                    seals.append((request.slots[index], key.hex(), parent.hex(), size))
            if done % size:
                parent = request.keys[-1] if request.keys else NO_BLOCK
                key = block_hash(parent, request.tokens[done // size * size:done])
                notes.append((request.slots[done // size], key.hex(), parent.hex(), done % size))
        return {"seal": seals, "note": notes}

    def step(self) -> bool:
        """One step on all ranks; new tokens go to the clients. False: nothing to do."""
        self._admit()
        slots, rows = self._slots, []
        shares = self._shares()
        for request, count in shares:
            while len(request.slots) * self._size < request.done + count:
                request.slots.append(slots.allocate())
            rows += [(request.tokens[i], i, request.slots) for i in range(request.done, request.done + count)]
        if not rows and not slots.to_release:
            return False
        plan = {"release": slots.to_release, "acquire": slots.to_acquire, "salvage": self._salvages, "rows": rows,
                "phase": "prefill" if any(count > 1 for _, count in shares) else "decode"}
        slots.to_release, slots.to_acquire, self._salvages = [], [], []
        after: dict = {}

        def meanwhile() -> dict:
            after.update(self._after(shares))
            return after

        logits = self._run(plan, meanwhile)
        if not rows:
            return False
        for slot, key, _, _ in after["seal"]:
            slots.sealed(slot, bytes.fromhex(key))
        self.steps += 1
        at = 0
        for request, count in shares:
            at += count
            request.done += count
            if request.done == len(request.tokens):
                self._emit(request, logits[at - 1].tolist())
        return True

    def _emit(self, request: Request, logits: list) -> None:
        index = len(request.tokens) - request.prompt + request.given
        token = sample(logits, request.temperature, request.seed, index)
        line = {"id": request.id, "index": index, "token": token}
        if request.text:
            line["text"] = TOKENS[token]
        self._log(f"token id={self._log.word(request.id)} index={index} token={token}")
        request.client.say(line)
        request.tokens.append(token)
        if len(request.tokens) == request.limit:
            self._finish(request)
            request.client.say({"id": request.id, "done": True, "reason": "length", "prompt_tokens": request.prompt,
                                "cached_tokens": request.cached, "salvaged_tokens": request.salvaged,
                                "computed_tokens": request.prompt - request.cached - request.salvaged})
