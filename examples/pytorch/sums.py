# SPDX-License-Identifier: Apache-2.0
"""Where the ranks' parts of a row are added up: twice in a layer, inside the captured graph.

Each way gives the model a tensor for this rank's part of sum number `i` of a step, submits the exchange to the model's
stream, and tells which tensor [parts, rows, width] is to be added. A step always makes the same number of sums, with the
same number of rows.
"""
from __future__ import annotations

import ctypes as c

import torch

from ranks import Ranks


class Alone:
    """One rank: nothing to exchange."""
    name = "none"

    def __init__(self, rows: int, width: int, device: str) -> None:
        self._part = torch.zeros((1, rows, width), dtype=torch.bfloat16, device=device)

    def part(self, i: int) -> torch.Tensor:
        return self._part[0]

    def exchange(self, i: int, stream: int) -> None:
        pass

    def parts(self, i: int) -> torch.Tensor:
        return self._part

    def verify(self) -> int:
        """After waking, on all ranks: nanoseconds of one sum of known numbers; 0: there is nothing to be verified."""
        return 0

    def wait(self) -> None:
        """Called again and again while a step is under way: raises if it cannot end."""

    def close(self) -> None:
        pass


class ThroughHost(Alone):
    """Ranks that compute on the CPU: over the sockets that lead them."""
    name = "sockets"

    def __init__(self, rows: int, width: int, ranks: Ranks) -> None:
        self._ranks = ranks
        self._mine = torch.zeros((rows, width), dtype=torch.bfloat16)
        self._all = torch.zeros((ranks.size, rows, width), dtype=torch.bfloat16)

    def part(self, i: int) -> torch.Tensor:
        return self._mine

    def exchange(self, i: int, stream: int) -> None:
        together = self._ranks.exchange(self._mine.view(torch.uint8).numpy().tobytes())
        self._all.view(torch.uint8).view(-1).copy_(torch.frombuffer(bytearray(b"".join(together)), dtype=torch.uint8))

    def parts(self, i: int) -> torch.Tensor:
        return self._all


class OneDevice(Alone):
    """Several ranks on one GPU, for drills: memory that they share (CUDA IPC), and flags that their streams wait for.

    The GPU runs one process's work at a time. A kernel that spins on a flag would use up its whole time slice before the
    other process could set it; a stream that waits for a value (cuStreamWaitValue32) gives the rest of it away: 0.2 ms a
    sum, where handing over through the CPU took 0.36 ms. Setting and waiting are nodes of the captured graph.

    Sum i uses half i % 2 of the memory and flags of its own. A rank raises its flag of sum i when its part is there, and
    waits for all others' flags of sum i. Then everybody is past the waits of sum i - 1, so its own flag of that can be
    lowered; and nobody reads that half any more when it writes its part of sum i + 1 there.
    """
    name = "one device"
    FLAG_BYTES = 64

    class _Handle(c.Structure):
        _fields_ = [("bytes", c.c_char * 64)]

    def __init__(self, rows: int, width: int, sums: int, ranks: Ranks) -> None:
        if sums < 3:
            raise ValueError(f"{sums} sums in a step: flags need at least 3")
        self._ranks, self._sums, self._cuda = ranks, sums, c.CDLL("libcuda.so.1")
        flags = -(-sums * ranks.size * self.FLAG_BYTES // 4096) * 4096
        half = ranks.size * rows * width * 2
        self._address = c.c_uint64()
        handle = self._Handle()
        if ranks.rank == 0:
            self._check("cuMemAlloc", self._cuda.cuMemAlloc_v2(c.byref(self._address), c.c_size_t(flags + 2 * half)))
            self._check("cuMemsetD8", self._cuda.cuMemsetD8_v2(self._address, c.c_ubyte(0), c.c_size_t(flags + 2 * half)))
            self._check("cuCtxSynchronize", self._cuda.cuCtxSynchronize())
            self._check("cuIpcGetMemHandle", self._cuda.cuIpcGetMemHandle(c.byref(handle), self._address))
        handle = self._Handle.from_buffer_copy(ranks.exchange(bytes(handle))[0])
        if ranks.rank != 0:
            self._check("cuIpcOpenMemHandle", self._cuda.cuIpcOpenMemHandle_v2(c.byref(self._address), handle, c.c_uint(1)))
        raw = type("DeviceBytes", (), {"__cuda_array_interface__": {
            "shape": (2 * half,), "typestr": "|u1", "data": (self._address.value + flags, False), "version": 3}})()
        self._halves = torch.as_tensor(raw, device="cuda").view(torch.bfloat16).view(2, ranks.size, rows, width)
        ranks.exchange(b"!")  # rank 0 keeps it until everybody has it

    @staticmethod
    def _check(call: str, result: int) -> None:
        if result != 0:
            raise RuntimeError(f"{call}: CUDA error {result}")

    def _flag(self, i: int, rank: int) -> c.c_uint64:
        return c.c_uint64(self._address.value + (i * self._ranks.size + rank) * self.FLAG_BYTES)

    def _set(self, i: int, stream: int, value: int) -> None:
        self._check("cuStreamWriteValue32", self._cuda.cuStreamWriteValue32_v2(
            c.c_void_p(stream), self._flag(i, self._ranks.rank), c.c_uint32(value), c.c_uint(0)))

    def part(self, i: int) -> torch.Tensor:
        return self._halves[i % 2, self._ranks.rank]

    def exchange(self, i: int, stream: int) -> None:
        self._set(i, stream, 1)
        for rank in range(self._ranks.size):
            if rank != self._ranks.rank:
                self._check("cuStreamWaitValue32", self._cuda.cuStreamWaitValue32_v2(
                    c.c_void_p(stream), self._flag(i, rank), c.c_uint32(1), c.c_uint(0)))
        self._set((i - 1) % self._sums, stream, 0)

    def parts(self, i: int) -> torch.Tensor:
        return self._halves[i % 2]


class Nccl(Alone):
    """One rank on each GPU. NCCL carries the parts and adds nothing: its all-reduce adds up each element in an order that
    depends on where in the buffer it lies, so from three ranks on a row's sum would depend on its place in the batch."""
    VERIFY_MS = 2000

    def __init__(self, rows: int, width: int, ranks: Ranks, session) -> None:
        self._parts = torch.zeros((ranks.size, rows, width), dtype=torch.bfloat16, device="cuda")
        self._part = self._parts[ranks.rank]
        self.communicator = session.communicator()
        self.name = f"NCCL {self.communicator.version}"

    def part(self, i: int) -> torch.Tensor:
        return self._part

    def exchange(self, i: int, stream: int) -> None:
        self.communicator.all_gather(self._parts, self._part, stream=stream)

    def parts(self, i: int) -> torch.Tensor:
        return self._parts

    def verify(self) -> int:
        return self.communicator.verify(self.VERIFY_MS)

    def wait(self) -> None:
        self.communicator.check()

    def close(self) -> None:
        self.communicator.close()


def make(kind: str, rows: int, width: int, sums: int, device: str, ranks: Ranks, session) -> Alone:
    """The way that fits: by where the ranks compute ("auto"), or NCCL, which takes one rank as well. Collective."""
    if kind == "nccl":
        return Nccl(rows, width, ranks, session)
    if ranks.size == 1:
        return Alone(rows, width, device)
    if device == "cpu":
        return ThroughHost(rows, width, ranks)
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    uuids = ranks.exchange(uuid.encode().ljust(64))
    if len(set(uuids)) == 1:
        return OneDevice(rows, width, sums, ranks)
    if len(set(uuids)) == ranks.size:
        return Nccl(rows, width, ranks, session)
    raise SystemExit("error: some ranks share a GPU and some do not; give each rank its own, or all of them one")
