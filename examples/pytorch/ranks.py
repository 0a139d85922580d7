# SPDX-License-Identifier: Apache-2.0
"""The ranks of one engine on one host, in a star of Unix sockets: rank 0 says what is done, everybody does it.

A message is a 4-byte length and bytes. No call waits without bound, and whoever finds another rank gone ends: what is left
of a cohort is fenced by the coordinators anyhow, sooner than it could be repaired.
"""
from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import struct
import sys
import time

EXIT_PEER_LOST = 71  # as minillm's
CONNECT_S, CALL_S = 120.0, 60.0  # until all ranks have come; for one message
MESSAGE_BYTES_MAX = 64 << 20


def peer_lost(rank: int, other: int) -> None:
    print(f"error: rank {other} of this engine is gone; rank {rank} ends too", file=sys.stderr, flush=True)
    os._exit(EXIT_PEER_LOST)


class Ranks:
    """`start` is what all ranks of this start have in common, and no others: it names the socket."""

    def __init__(self, rank: int, size: int, start: str) -> None:
        self.rank, self.size = rank, size
        self._peers: dict[int, socket.socket] = {}
        self._poll = select.poll()
        if size == 1:
            return
        name = "\0gms-engine-" + hashlib.sha256(start.encode()).hexdigest()[:32]
        deadline = time.monotonic() + CONNECT_S
        if rank == 0:
            self._accept(name, deadline)
        else:
            self._connect(name, deadline)
        for peer in self._peers.values():
            peer.settimeout(CALL_S)
            self._poll.register(peer, select.POLLIN)

    @staticmethod
    def _uid(peer: socket.socket) -> int:
        return struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]

    def _accept(self, name: str, deadline: float) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(name)
            listener.listen(self.size)
            while len(self._peers) < self.size - 1:
                listener.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    peer = listener.accept()[0]
                except TimeoutError:
                    missing = sorted(set(range(1, self.size)) - set(self._peers))
                    sys.exit(f"error: ranks {missing} of this engine did not come within {CONNECT_S:.0f} s")
                peer.settimeout(CALL_S)
                if self._uid(peer) != os.geteuid():
                    peer.close()
                    continue
                self._peers[struct.unpack("<I", self._take(peer, 4, 0))[0]] = peer

    def _connect(self, name: str, deadline: float) -> None:
        while True:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                peer.connect(name)
                break
            except OSError:
                peer.close()
                if time.monotonic() > deadline:
                    sys.exit(f"error: rank 0 of this engine did not come within {CONNECT_S:.0f} s")
                time.sleep(0.02)
        if self._uid(peer) != os.geteuid():
            sys.exit("error: rank 0's socket belongs to another user")
        peer.sendall(struct.pack("<I", self.rank))
        self._peers[0] = peer

    def _take(self, peer: socket.socket, count: int, other: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                more = peer.recv(count - len(data))
            except OSError:
                more = b""
            if not more:
                peer_lost(self.rank, other)
            data += more
        return bytes(data)

    def _give(self, other: int, data: bytes) -> None:
        try:
            self._peers[other].sendall(struct.pack("<I", len(data)) + data)
        except OSError:
            peer_lost(self.rank, other)

    def _receive(self, other: int) -> bytes:
        length = struct.unpack("<I", self._take(self._peers[other], 4, other))[0]
        if length > MESSAGE_BYTES_MAX:
            sys.exit(f"error: rank {other} announced a message of {length} bytes")
        return self._take(self._peers[other], length, other)

    @property
    def sockets(self) -> list[socket.socket]:
        return list(self._peers.values())

    def check(self) -> None:
        """Ends this rank if another one is gone; no message is read."""
        for fd, events in self._poll.poll(0) if self._peers else ():
            other = next(rank for rank, peer in self._peers.items() if peer.fileno() == fd)
            if events & (select.POLLHUP | select.POLLERR):
                peer_lost(self.rank, other)

    def tell(self, message: object) -> None:
        """Rank 0: the same to every other rank."""
        if self._peers:
            data = json.dumps(message, separators=(",", ":")).encode()
            for other in self._peers:
                self._give(other, data)

    def hear(self) -> object:
        """Another rank: what rank 0 says next."""
        return json.loads(self._receive(0))

    def gather(self, data: bytes) -> list[bytes]:
        """Rank 0: everybody's, by rank. Others: nothing."""
        if self.rank != 0:
            self._give(0, data)
            return []
        return [data] + [self._receive(other) for other in range(1, self.size)]

    def exchange(self, data: bytes) -> list[bytes]:
        """Everybody's, by rank, on every rank; all of the same length."""
        if self.size == 1:
            return [data]
        if self.rank == 0:
            everything = self.gather(data)
            together = b"".join(everything)
            for other in self._peers:
                self._give(other, together)
        else:
            self.gather(data)
            together = self._receive(0)
        return [together[i * len(data):(i + 1) * len(data)] for i in range(self.size)]
