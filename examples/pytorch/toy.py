# SPDX-License-Identifier: Apache-2.0
"""A model without PyTorch, for machines that have none: every number it makes depends on all KV of its sequence."""
import struct
from typing import Callable

_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Model:
    """KV of a token: 64 bytes made of the token, its place and the weights. Logits: of the sum over all KV so far, on all
    ranks."""
    name, dtype, vocabulary, rows, stream, copier = "toy@2", "u64", 256, 16, 0, None
    _PER_TOKEN = 64

    def __init__(self, options, ranks) -> None:
        self._ranks = ranks
        self.layout = f"slot-token tp={ranks.size}"
        self.block_tokens = options.block_tokens
        self.block_bytes = self.block_tokens * self._PER_TOKEN
        self.tail_layout = (1, self._PER_TOKEN, self.block_bytes)
        self.graph_captures = 0
        self._tensors = {f"row{i}": struct.pack("<Q", _mix(16 * ranks.rank + i)) * 8 for i in range(16)}
        self._weights = self._kv = None

    def weight_sizes(self) -> dict:
        return {name: len(data) for name, data in self._tensors.items()}

    def write_weights(self, pool, places: dict) -> None:
        for name, data in self._tensors.items():
            pool.memory()[places[name][0]:places[name][0] + len(data)] = data

    def bind(self, weights, places: dict, kv, slots: int, session) -> None:
        start = places["row0"][0]
        self._weights = struct.unpack("<Q", bytes(weights.memory()[start:start + 8]))[0]
        self._kv = kv.memory()

    def warm_up(self) -> None:
        self.graph_captures += 1

    def report(self) -> str:
        return ""

    def verify(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def poison(self, slot: int) -> None:
        self._kv[slot * self.block_bytes:(slot + 1) * self.block_bytes] = b"\xa5" * self.block_bytes

    def _place(self, slots, position: int) -> int:
        return slots[position // self.block_tokens] * self.block_bytes + position % self.block_tokens * self._PER_TOKEN

    def submit(self, rows: list) -> None:
        """rows: (token, position, slots of the sequence). Stores the KV of all rows."""
        self._rows = rows
        for token, position, slots in rows:
            at = self._place(slots, position)
            self._kv[at:at + self._PER_TOKEN] = struct.pack("<Q", _mix(_mix(token + 1) ^ position ^ self._weights)) * 8

    def finish(self, check: Callable[[], None]) -> list:
        totals = []
        for _, position, slots in self._rows:
            total = 0
            for i in range(position + 1):
                total = _mix(total ^ int.from_bytes(bytes(self._kv[self._place(slots, i):][:64]), "little") & _MASK)
            totals.append(total)
        together = [0] * len(totals)
        for part in self._ranks.exchange(struct.pack(f"<{len(totals)}Q", *totals)):
            together = [_mix(a ^ b) for a, b in zip(together, struct.unpack(f"<{len(totals)}Q", part))]
        return [Row((_mix(total ^ t) >> 40) / 2.0**22 for t in range(self.vocabulary)) for total in together]


class Row(list):
    def tolist(self) -> list:
        return self
