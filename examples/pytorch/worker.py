# SPDX-License-Identifier: Apache-2.0
"""What every rank does with a plan: slots and steps of libgms around one step of the model."""
from __future__ import annotations

import os
import select
import time
from typing import Callable

from endings import Endings
from ranks import Ranks

STEP_S = 60.0  # a step that takes longer will not end


class Log:
    """One line an event, one write a line: what drills judge from."""

    def __init__(self, directory: str | None, member) -> None:
        self._fd = -1
        if directory:
            path = os.path.join(directory, f"engine{member.engine_id}.{member.incarnation}.{member.rank}.log")
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __call__(self, text: str) -> None:
        if self._fd >= 0:
            os.write(self._fd, f"{time.monotonic_ns()} {text}\n".encode())

    @staticmethod
    def word(text: str) -> str:
        if text.isascii() and text.isalnum():
            return text
        return "".join(f"%{b:02X}" if b <= 0x20 or b in b"%=\x7f" else chr(b) for b in text.encode())


class Worker:
    def __init__(self, model, session, kv, ranks: Ranks, endings: Endings, log: Log) -> None:
        self._model, self._session, self._kv, self._ranks = model, session, kv, ranks
        self._endings, self._log = endings, log
        self._generations: dict[int, int] = {}
        self._tails: dict[int, object] = {}
        self._notes: list[tuple] = []

    def adopt(self, blocks: list, tails: list) -> None:
        self._generations = {block.slot: block.generation for block in blocks}
        self._tails = {tail.slot: tail for tail in tails}

    def lead(self, plan: dict, meanwhile: Callable[[], dict]):
        """Rank 0: has the plan carried out on every rank; logits of its rows. `meanwhile` says what follows, and is asked
        while the device computes."""
        self._ranks.tell(plan)

        def after() -> dict:
            following = meanwhile()
            self._ranks.tell(following)
            return following

        return self._run(plan, after)

    def _run(self, plan: dict, after: Callable[[], dict]):
        kv, log, generations, session = self._kv, self._log, self._generations, self._session
        for slot in plan["release"]:
            kv.release(slot, generations.pop(slot))
        for slot in plan["acquire"]:
            generation = kv.acquire(slot)
            if generation is None:
                raise SystemExit(f"error: slot {slot} is not to be had on rank {self._ranks.rank}, and is on rank 0")
            generations[slot] = generation
            log(f"write slot={slot} generation={generation}")
        for source, slot, count in plan["salvage"]:
            kv.salvage(self._tails[source], count, slot, generations[slot], self._model.copier)
            log(f"salvage from={source} into={slot} tokens={count}")
        if not plan["rows"]:
            return None
        token = session.step_begin()
        self._model.submit(plan["rows"])
        self._endings.pass_through(plan["phase"])
        self._limit = time.monotonic() + STEP_S
        following = after()
        self._note()
        logits = self._model.finish(self._still)
        session.step_complete(token)
        session.progress()
        self._notes = [(slot, generations[slot], bytes.fromhex(key), bytes.fromhex(parent), count, token)
                       for slot, key, parent, count in following["note"]]
        for slot, key, parent, count in following["seal"]:
            self._endings.pass_through("seal")
            kv.seal(slot, generations[slot], bytes.fromhex(key), bytes.fromhex(parent), count, token)
            log(f"seal slot={slot} generation={generations[slot]} hash={key}")
        return logits

    def _note(self) -> None:
        """How far the step before has brought unfinished blocks, said while the device is at the next one."""
        for note in self._notes:
            if self._generations.get(note[0]) == note[1]:
                self._kv.note(*note)
        self._notes = []

    def _still(self) -> None:
        self._ranks.check()
        if time.monotonic() > self._limit:
            raise SystemExit(f"error: a step has not ended within {STEP_S:.0f} s on rank {self._ranks.rank}")

    def follow(self) -> None:
        """Another rank: does what rank 0 says, until it says that this is the end."""
        leader, news = self._ranks.sockets[0], self._session.event_fd
        poll = select.poll()
        poll.register(leader, select.POLLIN)
        poll.register(news, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(1000)}
            if news in ready:
                self._session.wait_promotion(0)  # lets messages in; raises when this engine must end
            if leader.fileno() in ready:
                message = self._ranks.hear()
                if "rows" in message:
                    self._run(message, self._ranks.hear)
                elif "arm" in message:
                    if message["rank"] in ("all", self._ranks.rank):
                        self._endings.arm(message["arm"])
                else:
                    return
