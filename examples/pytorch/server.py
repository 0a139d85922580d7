# SPDX-License-Identifier: Apache-2.0
"""Rank 0's clients: minillm's protocol, JSON lines on a Unix socket."""
from __future__ import annotations

import json
import os
import selectors
import socket
import sys
from typing import Callable

from scheduler import Request, Scheduler, Slots


class Client:
    LINE_BYTES, UNREAD_BYTES = 1 << 20, 8 << 20
    _encode = json.JSONEncoder(separators=(",", ":")).encode

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection, self._in, self.out = connection, b"", b""

    def say(self, message: dict) -> None:
        self.out += self._encode(message).encode() + b"\n"

    def flush(self) -> bool:
        """False: the client is gone, or does not read."""
        try:
            while self.out:
                self.out = self.out[self.connection.send(self.out, socket.MSG_NOSIGNAL):]
        except BlockingIOError:
            return len(self.out) <= self.UNREAD_BYTES
        except OSError:
            return False
        return True

    def lines(self) -> list[bytes] | None:
        """Whole lines that have come; None: the client is gone."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._in = (self._in + data).split(b"\n")
        return lines if len(self._in) <= self.LINE_BYTES else None


def tokens_of(prompt) -> list[int]:
    if isinstance(prompt, list):
        if not all(isinstance(token, int) and 0 <= token < 256 for token in prompt):
            raise ValueError("a token is a number from 0 to 255")
        return list(prompt)
    tokens = []
    for character in prompt:
        number = ord(character)
        tokens += [number - 0x100] if 0x100 <= number <= 0x1ff else list(character.encode())
    return tokens


def check_request(message: dict) -> None:
    """Whatever is computed with later has to be what it is taken for."""
    if not isinstance(message["id"], str) or not 1 <= len(message["id"].encode()) <= 128:
        raise ValueError("an \"id\" is a string of 1 to 128 bytes")
    temperature = message.get("temperature", 0)
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature <= 100:
        raise ValueError("a \"temperature\" is a number from 0 to 100")
    for name in ("seed", "max_tokens"):
        if type(message.get(name, 0)) is not int:
            raise ValueError(f"\"{name}\" is a whole number")


class Listener:
    """Made before parking, under a name that nobody knows; the promoted one takes the endpoint over by renaming it."""

    def __init__(self, listen: str, engine: int) -> None:
        kind, _, self._place = listen.partition(":")
        if kind != "unix":
            sys.exit(f"error: --listen {listen}: give unix:PATH")
        self._waiting = f"{self._place}.{engine}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.path.exists(self._waiting):
            os.unlink(self._waiting)
        self.socket.bind(self._waiting)
        self.socket.listen(64)
        self.socket.setblocking(False)

    def open(self) -> None:
        os.rename(self._waiting, self._place)

    def close(self) -> None:
        if os.path.exists(self._waiting):
            os.unlink(self._waiting)


class Server:
    def __init__(self, options, listener: Listener, member, scheduler: Scheduler, slots: Slots,
                 arm: Callable[[dict], None], news: int, heard: Callable[[], None]) -> None:
        """`news` is a descriptor; `heard` is called when it is readable. `arm` arms ranks or raises ValueError."""
        self._options, self._member, self._scheduler, self._slots = options, member, scheduler, slots
        self._arm, self._heard, self._listener = arm, heard, listener.socket
        self._selector, self._clients = selectors.DefaultSelector(), set()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(news, selectors.EVENT_READ)
        self.epoch = self.adopted = 0

    def _answer(self, client: Client, line: bytes) -> None:
        message = None
        try:
            message = json.loads(line)
            operation = message["op"]
            if operation == "generate":
                self._generate(client, message)
            elif operation == "stats":
                client.say({"stats": {"sealed": len(self._slots.cached), "active": len(self._scheduler.running),
                                      "waiting": len(self._scheduler.waiting), "steps": self._scheduler.steps,
                                      "idle": len(self._slots.free), "quarantined": self._slots.quarantined,
                                      "adopted": self.adopted}})
            elif operation == "arm":
                self._arm(message)
                client.say({"armed": True})
            else:
                raise ValueError(f"operation {operation} is unknown")
        except (ValueError, KeyError, TypeError) as problem:
            known = isinstance(message, dict) and isinstance(message.get("id"), str)
            client.say({**({"id": message["id"]} if known else {}), "error": str(problem)})

    def _generate(self, client: Client, message: dict) -> None:
        check_request(message)
        if self._scheduler.has(client, message["id"]):
            raise ValueError(f"a request {message['id']} runs on this connection")
        given = message.get("generated", [])
        prompt = tokens_of(message["prompt"])
        tokens = prompt + tokens_of(given)
        limit = len(prompt) + int(message["max_tokens"])
        if not prompt or limit <= len(tokens) or limit > self._options.max_tokens:
            raise ValueError(f"{len(tokens)} tokens and {message['max_tokens']} to come: a prompt has at least one, and "
                             f"{self._options.max_tokens} are possible in all")
        request = Request(client, message, tokens, len(given), limit)
        if request.blocks(self._options.block_tokens) > self._options.slots // 2:
            raise ValueError("this request needs more blocks than there are")
        self._scheduler.submit(request)

    def _drop(self, client: Client) -> None:
        self._scheduler.cancel(client)
        self._selector.unregister(client.connection)
        client.connection.close()
        self._clients.discard(client)

    def _accept(self) -> None:
        """Everybody who waits: after a failover all come at once, and a step lies between two turns."""
        while True:
            try:
                client = Client(self._listener.accept()[0])
            except BlockingIOError:
                return
            self._clients.add(client)
            self._selector.register(client.connection, selectors.EVENT_READ, client)
            client.say({"hello": "minillm", "engine": self._member.engine_id, "incarnation": self._member.incarnation,
                        "epoch": self.epoch, "pid": os.getpid()})
            client.flush()  # it asks when it has heard this

    def turn(self, busy: bool) -> bool:
        """Hears whoever has something to say, makes one step, answers. True: there is more to do."""
        for key, _ in self._selector.select(0 if busy else 0.5):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data is None:
                self._heard()
            else:
                lines = key.data.lines()
                for line in lines or []:
                    self._answer(key.data, line)
                if lines is None:
                    self._drop(key.data)
        busy = self._scheduler.step()
        for client in list(self._clients):
            if client.out and not client.flush():
                self._drop(client)
        return busy
