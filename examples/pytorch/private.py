# SPDX-License-Identifier: Apache-2.0
"""What gms.py gives an engine, without anybody behind it: private memory, no group, no failover. To compare with."""
from __future__ import annotations

import os
from typing import Iterator, Optional

import gms


class Pool:
    def __init__(self, size: int, device: str) -> None:
        self.bytes, self.on_device, self.must_publish = size, device == "cuda", True
        if self.on_device:
            import torch
            self._memory = torch.zeros(size, dtype=torch.uint8, device=device)
            self.address = self._memory.data_ptr()
        else:
            self._memory = memoryview(bytearray(size))
        self._places: dict[str, tuple[int, int]] = {}

    def describe(self, name: str, offset: int, length: int) -> None:
        self._places[name] = (offset, length)

    def publish(self) -> None:
        self.must_publish = False

    def find(self, name: str) -> tuple[int, int]:
        return self._places[name]

    def memory(self) -> memoryview:
        return self._memory

    def tensor(self, offset: int, shape, dtype, *, mutable: bool = False):
        import torch
        length = torch.Size(shape).numel() * dtype.itemsize
        whole = self._memory if self.on_device else torch.frombuffer(self._memory, dtype=torch.uint8)
        return whole[offset:offset + length].view(dtype).view(*shape)

    def acquire(self, slot: int) -> int:
        return 1

    def release(self, slot: int, generation: int, token: int = 0) -> None:
        pass

    def seal(self, slot: int, generation: int, key: bytes, parent: bytes, token_count: int, token: int) -> None:
        pass

    def states(self, count: int) -> bytes:
        return bytes(count)

    def sealed(self) -> list[gms.Block]:
        return []

    def tail_layout(self, planes: int, position_bytes: int, plane_bytes: int) -> None:
        pass

    def note(self, slot: int, generation: int, key: bytes, parent: bytes, token_count: int, token: int) -> bool:
        return True

    def torch_copier(self):
        return lambda *what: None  # nobody leaves anything

    def tails(self) -> Iterator[gms.Tail]:
        return iter(())

    def returned(self) -> Iterator[int]:
        return iter(())


class Session:
    driver_calls, asked_to_park = 0, False

    def __init__(self, device: str) -> None:
        self._device = device
        self.event_fd, self._quiet = os.pipe2(os.O_CLOEXEC)  # nothing is ever written there

    def join(self, identity: gms.Identity) -> gms.Membership:
        return gms.Membership(0, 0, 0, int(os.environ.get("RANK", 0)), identity.world_size, 0, False)

    def weights(self, name: str, length: int) -> Pool:
        return Pool(length, self._device)

    def kv(self, name: str, slot_count: int, block_bytes: int) -> Pool:
        return Pool(slot_count * block_bytes, self._device)

    def communicator(self):
        raise gms.GmsError("communicator", gms.REFUSED, "there is nobody who would carry NCCL's id from rank to rank")

    def park(self) -> None:
        pass

    def wait_promotion(self, timeout_ms: int = -1) -> Optional[int]:
        return 1

    def adopt(self) -> gms.Adoption:
        return gms.Adoption(0, 0, 0, 0, 0)

    def wake(self) -> None:
        pass

    def serve(self, endpoint: Optional[str]) -> None:
        pass

    def step_begin(self) -> int:
        return 1

    def step_complete(self, token: int) -> None:
        pass

    def progress(self) -> None:
        pass

    def work(self, count: int) -> None:
        pass

    def busy(self, duration_ms: int) -> None:
        pass

    def report_sticky_error(self, code: int, text: str) -> None:
        pass

    def tag_reports(self) -> list[gms.TagReport]:
        return []

    def close(self) -> None:
        pass
