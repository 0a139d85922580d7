# SPDX-License-Identifier: Apache-2.0
"""libgms for Python: a thin, typed layer over ctypes, and PyTorch tensors over pools.

Every method is one call of include/gms/engine.h, which says what it means; what it refuses is raised as GmsError, whose
`status` is the number in gms/status.h. LIBGMS names the library (default: libgms.so.0). Needs no PyTorch itself; `tensor`
imports it where it is used.

Blocks that are not finished when an engine dies (its successor goes on in their middle). An engine

* says once, after Session.kv, where the positions of a block are: pool.tail_layout(planes, position_bytes, plane_bytes);
* after each step that is complete (step_complete, or step_poll said so), on every rank and in the same order, for the last
  block that each sequence has: pool.note(slot, generation, key, parent, count, token), where `key` is the block's hash over
  its first `count` tokens, made as a whole block's is. Before the seal, where the block is full;
* after adopt, on every rank: tails = list(pool.tails()). Their slots are in quarantine: they are not in the free list;
* when a request comes whose cached blocks end at `parent`: looks for a tail with that parent and an entry (count, key) whose
  count leaves a token to compute and whose key is that of the request's next `count` tokens. Then every rank leases a slot
  and calls pool.salvage(tail, count, slot, generation), with pool.torch_copier() where the pool is device memory, and goes
  on behind these positions;
* forgets a tail when its slot is handed out again (it may come back from quarantine: pool.returned).
"""
from __future__ import annotations

import contextlib
import ctypes as c
import dataclasses
import os
import struct
from typing import Callable, Iterator, NamedTuple, Optional, Sequence

WEIGHTS, KV = 1, 2  # pool kinds
KEEP, SWAP, RELEASE, SAVE = 1, 2, 3, 4  # what happens to a tag's memory on park
SUM, PRODUCT, MAX, MIN, AVERAGE = 0, 1, 2, 3, 4  # reductions
AGAIN, TIMEOUT, NOT_FOUND, BUSY, REFUSED, NOT_DONE, QUARANTINED, STALE, DISCONNECTED = 2, 3, 6, 8, 10, 13, 14, 15, 200

_u32, _u64, _text, _pointer = c.c_uint32, c.c_uint64, c.c_char_p, c.c_void_p


def _structure(name: str, *fields: tuple) -> type:
    return type(name, (c.Structure,), {"_fields_": list(fields)})


_Error = _structure("_Error", ("status", c.c_int), ("rank", c.c_int32), ("text", c.c_char * 512))
_Identity = _structure("_Identity", ("model", _text), ("dtype", _text), ("layout", _text), ("hash_algorithm", _text),
                       ("engine_name", _text), ("engine_version", _text), ("hash_seed", _u64), ("block_tokens", _u32),
                       ("world_size", _u32))
_Membership = _structure("_Membership", ("world", _u64), ("incarnation", _u64), ("epoch", _u64), ("rank", _u32),
                         ("world_size", _u32), ("engine_id", _u32), ("kv_verify_full", _u32))
_Description = _structure("_Description", ("name", c.c_char * 64), ("kind", _u32), ("slot_count", _u32),
                          ("block_bytes", _u64), ("bytes", _u64))
_Promotion = _structure("_Promotion", ("epoch", _u64), ("source_incarnation", _u64))
_Adoption = _structure("_Adoption", ("adopted", _u32), ("idle", _u32), ("quarantined", _u32), ("sealed_here", _u32),
                       ("bad_here", _u32))
_TailLayout = _structure("_TailLayout", ("planes", _u32), ("position_bytes", _u32), ("plane_bytes", _u64))
_TailEntry = _structure("_TailEntry", ("hash", c.c_uint8 * 16), ("token_count", _u32))
_Tail = _structure("_Tail", ("pool", _u32), ("slot", _u32), ("generation", _u64), ("parent_hash", c.c_uint8 * 16),
                   ("entry_count", _u32), ("entries", _TailEntry * 3))
_Copier = c.CFUNCTYPE(c.c_int, _pointer, _pointer, _pointer, _u64, _u64, _u64)
_BLOCK = struct.Struct("<16s16sI8xIQ48x")  # gms_block, its home alone
_SEAL, _NOTE = struct.Struct("<16s16sIIIIQ48x"), struct.Struct("<16sI")  # gms_block of one part, gms_tail_entry
_Tag = _structure("_Tag", ("name", c.c_char * 64), ("policy", _u32))
_TagReport = _structure("_TagReport", ("tag", _Tag), ("bytes", _u64), ("park_ns", _u64), ("wake_ns", _u64))
_NcclOptions = _structure("_NcclOptions", ("library", _text), ("timeout_ms", _u32), ("launch_ms", _u32))
_NcclVerification = _structure("_NcclVerification", ("duration_ns", _u64), ("number", _u64))
_EXCHANGE_BYTES = 128
_BLOCKS = 1024  # in one call


class GmsError(Exception):
    """What libgms refused, in its words."""

    def __init__(self, call: str, status: int, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.status = status


@dataclasses.dataclass(frozen=True)
class Identity:
    """What makes KV of one engine readable by another; equal on all ranks and engines."""
    model: str
    dtype: str
    layout: str
    hash_algorithm: str
    engine_name: str
    engine_version: str
    hash_seed: int
    block_tokens: int
    world_size: int


@dataclasses.dataclass(frozen=True)
class Membership:
    world: int
    incarnation: int
    epoch: int
    rank: int
    world_size: int
    engine_id: int
    kv_verify_full: bool


@dataclasses.dataclass(frozen=True)
class Adoption:
    adopted: int
    idle: int
    quarantined: int
    sealed_here: int
    bad_here: int


class Block(NamedTuple):
    hash: bytes
    parent: bytes
    token_count: int
    slot: int
    generation: int


class Tail(NamedTuple):
    """What a predecessor left of one block: `entries` are (count, key), the longest first."""
    slot: int
    generation: int
    parent: bytes
    entries: tuple[tuple[int, bytes], ...]


@dataclasses.dataclass(frozen=True)
class TagReport:
    name: str
    policy: int
    bytes: int
    park_ns: int
    wake_ns: int


def _load() -> c.CDLL:
    library = c.CDLL(os.environ.get("LIBGMS", "libgms.so.0"))
    returns = {"gms_pool_address": _pointer, "gms_pool_bytes": _u64, "gms_pool_mapping_epoch": _u64,
               "gms_mapping_epoch": _u64, "gms_driver_calls": _u64, "gms_step_begin": _u64, "gms_status_text": _text,
               "gms_close": None, "gms_step_complete": None, "gms_progress": None, "gms_busy": None, "gms_work": None,
               "gms_wake_cancel": None, "gms_torch_alloc": _pointer, "gms_torch_free": None, "gms_nccl_close": None,
               "gms_nccl_abort": None, "gms_slot_states": None, "gms_nccl_library": _text, "gms_parking_preset": _text}
    for name, kind in returns.items():
        getattr(library, name).restype = kind
    # What each step calls: with these, ctypes converts numbers by itself, which is quicker.
    takes = {"gms_slot_acquire": (_pointer, _u32, _pointer), "gms_slot_release": (_pointer, _u32, _u64, _u64),
             "gms_block_seal": (_pointer, _text, _u64), "gms_tail_note": (_pointer, _u32, _u64, _text, _text, _u64),
             "gms_step_begin": (_pointer,), "gms_step_complete": (_pointer, _u64), "gms_progress": (_pointer,),
             "gms_work": (_pointer, _u32)}
    for name, kinds in takes.items():
        getattr(library, name).argtypes = kinds
    return library


class Pool:
    """One pool of the group; made by Session.weights and Session.kv."""

    def __init__(self, session: "Session", handle: c.c_void_p, kind: int) -> None:
        self._session, self._gms, self._handle, self._kind = session, session._gms, handle, kind
        self.address: int = self._gms.gms_pool_address(handle)
        self.bytes: int = self._gms.gms_pool_bytes(handle)
        self.index: int = self._gms.gms_pool_index(handle)
        self.on_device = bool(self._gms.gms_pool_on_device(handle))
        self._generation = _u64()
        self._at_generation = c.byref(self._generation)

    @property
    def must_publish(self) -> bool:
        return bool(self._gms.gms_pool_must_publish(self._handle))

    @property
    def mapping_epoch(self) -> int:
        return self._gms.gms_pool_mapping_epoch(self._handle)

    def describe(self, name: str, offset: int, length: int) -> None:
        """Adds one tensor to the manifest of weights that are to be published."""
        self._session._call("gms_manifest_add", self._handle, name.encode(), _u64(offset), _u64(length))

    def find(self, name: str) -> tuple[int, int]:
        """(offset, bytes) of a tensor of published weights."""
        offset, length = _u64(), _u64()
        self._session._call("gms_manifest_find", self._handle, name.encode(), c.byref(offset), c.byref(length))
        return offset.value, length.value

    def publish(self) -> None:
        self._session._call("gms_publish", self._handle)

    def acquire(self, slot: int) -> Optional[int]:
        """Leases a slot: its generation, None where it is quarantined or busy."""
        status = self._gms.gms_slot_acquire(self._handle, slot, self._at_generation)
        if status in (QUARANTINED, BUSY):
            return None
        self._session._check("gms_slot_acquire", status)
        return self._generation.value

    def release(self, slot: int, generation: int, token: int = 0) -> None:
        self._session._check("gms_slot_release", self._gms.gms_slot_release(self._handle, slot, generation, token))

    def seal(self, slot: int, generation: int, key: bytes, parent: bytes, token_count: int, token: int) -> None:
        """The block in `slot` is complete: `token` is the step that wrote it."""
        block = _SEAL.pack(key, parent, token_count, 1, self.index, slot, generation)
        self._session._check("gms_block_seal", self._gms.gms_block_seal(self._session._handle, block, token))

    def states(self, count: int) -> bytes:
        """Of the first slots, a byte each."""
        states = c.create_string_buffer(count)
        self._gms.gms_slot_states(self._handle, 0, count, states)
        return states.raw

    def sealed(self) -> list[Block]:
        """Every sealed block whose home is this pool, checked as it is read."""
        cursor, count, blocks = _u32(0), _u32(), c.create_string_buffer(_BLOCK.size * _BLOCKS)
        found: list[Block] = []
        while (status := self._gms.gms_sealed_list(self._handle, c.byref(cursor), blocks, _BLOCKS, c.byref(count))) == 0:
            found += map(Block._make, _BLOCK.iter_unpack(blocks.raw[:_BLOCK.size * count.value]))
        if status != NOT_FOUND:
            self._session._check("gms_sealed_list", status)
        return found

    def returned(self) -> Iterator[int]:
        """Slots that were in quarantine and are idle on every rank now; to be asked on the rank that chooses slots."""
        slot = _u32()
        while self._gms.gms_returned_next(self._handle, c.byref(slot)) == 0:
            yield slot.value

    def tail_layout(self, planes: int, position_bytes: int, plane_bytes: int) -> None:
        """Position p of plane q has `position_bytes` at q * plane_bytes + p * position_bytes of its slot."""
        self._session._call("gms_tail_layout_set", self._handle,
                            c.byref(_TailLayout(planes, position_bytes, plane_bytes)))

    def note(self, slot: int, generation: int, key: bytes, parent: bytes, token_count: int, token: int) -> bool:
        """The block in `slot` is complete up to `token_count` tokens. False: not kept, which costs nothing but a longer
        way back one day; raises where the engine has lost what it writes to."""
        entry = _NOTE.pack(key, token_count)
        status = self._gms.gms_tail_note(self._handle, slot, generation, parent, entry, token)
        if status >= 100:
            self._session._check("gms_tail_note", status)
        return status == 0

    def tails(self) -> Iterator[Tail]:
        """Blocks that the predecessor had not finished, the same on every rank; after adopt."""
        cursor, tail = _u32(0), _Tail()
        while (status := self._gms.gms_tail_next(self._handle, c.byref(cursor), c.byref(tail))) == 0:
            yield Tail(tail.slot, tail.generation, bytes(tail.parent_hash),
                       tuple((entry.token_count, bytes(entry.hash)) for entry in tail.entries[:tail.entry_count]))
        if status != NOT_FOUND:
            self._session._check("gms_tail_next", status)

    def salvage(self, tail: Tail, token_count: int, slot: int, generation: int,
                copier: Optional[Callable[[int, int, int, int, int], None]] = None) -> None:
        """Copies the first `token_count` positions into `slot`, which is leased at `generation`. `copier`, for device
        memory: called with (to, from, pitch, width, rows), offsets in the pool in bytes."""
        failure: list = []

        def copy(_, to, source, pitch, width, rows):
            try:
                copier(to - self.address, source - self.address, pitch, width, rows)
            except Exception as error:  # C cannot pass it on
                failure.append(error)
                return 1
            return 0

        entries = [_TailEntry((c.c_uint8 * 16)(*key), count) for count, key in tail.entries]
        raw = _Tail(self.index, tail.slot, tail.generation, (c.c_uint8 * 16)(*tail.parent), len(entries),
                    (_TailEntry * 3)(*entries))
        which = [count for count, _ in tail.entries].index(token_count)
        try:
            self._session._call("gms_tail_salvage", self._handle, c.byref(raw), _u32(which), _u32(slot),
                                _u64(generation), _Copier(copy) if copier is not None else _Copier(), None)
        except GmsError as error:
            raise error from (failure[0] if failure else None)

    def torch_copier(self) -> Callable[[int, int, int, int, int], None]:
        """Copies on PyTorch's current stream: the one that the engine's kernels use."""
        import torch

        flat = self.tensor(0, (self.bytes,), torch.uint8)

        def copy(to, source, pitch, width, rows):
            flat.as_strided((rows, width), (pitch, 1), to).copy_(flat.as_strided((rows, width), (pitch, 1), source))

        return copy

    def memory(self) -> memoryview:
        """The pool's bytes, for host memory."""
        if self.on_device:
            raise GmsError("memory", REFUSED, "this pool is device memory: use tensor")
        return memoryview((c.c_ubyte * self.bytes).from_address(self.address)).cast("B")

    def tensor(self, offset: int, shape: Sequence[int], dtype, *, mutable: bool = False):
        """A PyTorch tensor over the pool's bytes; nothing is copied, nothing is owned.

        Published weights are mapped for reading: a kernel that writes there ends its process. What the model changes while
        it runs (scales, counters) therefore does not belong there: `mutable` is refused for weights.
        """
        if mutable and self._kind == WEIGHTS:
            raise GmsError("tensor", REFUSED, "weights are mapped for reading once they are published, so a tensor that "
                                              "the model changes cannot be there: keep it in memory of the engine's own")
        import torch

        count = 1
        for length in shape:
            count *= length
        length = count * torch.empty((), dtype=dtype).element_size()
        if offset < 0 or offset + length > self.bytes:
            raise GmsError("tensor", 1, f"{length} bytes at {offset} are not inside the pool's {self.bytes}")
        if not self.on_device:
            return torch.frombuffer(self.memory(), dtype=torch.uint8, count=length, offset=offset).view(dtype).view(
                *shape)
        raw = type("DeviceBytes", (), {"__cuda_array_interface__": {
            "shape": (length,), "typestr": "|u1", "data": (self.address + offset, False), "version": 3}})()
        return torch.as_tensor(raw, device="cuda").view(dtype).view(*shape)


def _wheel_of_nccl() -> Optional[str]:
    """PyTorch's own NCCL, where none is loaded yet (libgms takes one that is): the file of its wheel."""
    import importlib.util

    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        if "/libnccl.so.2" in maps.read():
            return None
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return None
    for place in found.submodule_search_locations or () if found else ():
        path = os.path.join(place, "lib", "libnccl.so.2")
        if os.path.exists(path):
            return path
    return None


class Communicator:
    """NCCL between the ranks of this incarnation, one rank per GPU; made by Session.communicator (include/gms/nccl.h).

    Collectives go to PyTorch's current stream unless one is given (a torch.cuda.Stream, or its number), so inside
    torch.cuda.graph they are captured. Use each size once before capturing it. Nothing waits for ever: after CONDEMNED,
    SYSTEM or a verification that failed the communicator is aborted, and the engine should end.
    """

    def __init__(self, session: "Session", handle: c.c_void_p) -> None:
        self._session, self._gms, self._handle = session, session._gms, handle
        self.version: int = self._gms.gms_nccl_version(handle)
        self.library: str = self._gms.gms_nccl_library(handle).decode()

    @staticmethod
    def _stream(stream) -> c.c_void_p:
        if stream is None:
            import torch

            stream = torch.cuda.current_stream()
        return _pointer(getattr(stream, "cuda_stream", stream))

    @staticmethod
    def _type(tensor) -> int:
        names = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
                 "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11}
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in names:
            raise GmsError("collective", 1, f"NCCL has no type for {tensor.dtype}")
        if not tensor.is_contiguous() or tensor.device.type != "cuda":
            raise GmsError("collective", 1, "a tensor for NCCL is contiguous and on the device")
        return names[name]

    def all_reduce(self, tensor, op: int = SUM, stream=None) -> None:
        """In place."""
        address = _pointer(tensor.data_ptr())
        self._session._call("gms_nccl_all_reduce", self._handle, address, address, _u64(tensor.numel()),
                            self._type(tensor), op, self._stream(stream))

    def all_gather(self, output, tensor, stream=None) -> None:
        """`output` has the tensors of all ranks, in their order."""
        if output.numel() % tensor.numel() or output.dtype != tensor.dtype:
            raise GmsError("all_gather", 1, f"{output.numel()} elements of {output.dtype} do not hold tensors of "
                                            f"{tensor.numel()} elements of {tensor.dtype}")
        self._type(output)
        self._session._call("gms_nccl_all_gather", self._handle, _pointer(tensor.data_ptr()),
                            _pointer(output.data_ptr()), _u64(tensor.numel()), self._type(tensor), self._stream(stream))

    def broadcast(self, tensor, root: int = 0, stream=None) -> None:
        """In place, from rank `root`."""
        address = _pointer(tensor.data_ptr())
        self._session._call("gms_nccl_broadcast", self._handle, address, address, _u64(tensor.numel()),
                            self._type(tensor), _u32(root), self._stream(stream))

    def wait(self, timeout_ms: int, stream=None) -> bool:
        """Until the device has come past what was submitted to the stream; False: not within the time. In place of a
        synchronise, which hangs where a rank is gone."""
        return self._session._call("gms_nccl_wait", self._handle, self._stream(stream), _u32(timeout_ms),
                                   allowed=(TIMEOUT,)) == 0

    def verify(self, timeout_ms: int) -> int:
        """On all ranks, between wake and serve: does every rank take part? Nanoseconds that it took."""
        result = _NcclVerification()
        self._session._call("gms_nccl_verify", self._handle, _u32(timeout_ms), c.byref(result))
        return result.duration_ns

    def check(self) -> None:
        """Raises where NCCL has noticed an error, or the communicator was aborted. Never blocks."""
        self._session._call("gms_nccl_check", self._handle)

    @property
    def usable(self) -> bool:
        return self._gms.gms_nccl_check(self._handle, None) == 0

    def suspend(self) -> None:
        self._session._call("gms_nccl_suspend", self._handle)

    def resume(self, timeout_ms: int) -> None:
        self._session._call("gms_nccl_resume", self._handle, _u32(timeout_ms))

    def abort(self) -> None:
        """Ends what is in flight; may be called from any thread."""
        self._gms.gms_nccl_abort(self._handle)

    def close(self) -> None:
        """When the work is done, and before Session.close, which closes what is left."""
        self._gms.gms_nccl_close(self._handle)
        self._handle = _pointer()


class Session:
    """One engine rank's session. Everything that is not given comes from the environment that gms-exec sets."""

    def __init__(self) -> None:
        self._gms = _load()
        self._error = _Error()
        self._handle = _pointer()
        self._torch_pools: dict = {}
        self._call("gms_open", None, c.byref(self._handle))

    def _raise(self, call: str, status: int, text: str) -> None:
        raise GmsError(call, status, text)

    def _check(self, call: str, status: int) -> None:
        if status != 0:
            self._raise(call, status, self._gms.gms_status_text(status).decode())

    def _call(self, name: str, *arguments, allowed: Sequence[int] = ()) -> int:
        status = getattr(self._gms, name)(*arguments, c.byref(self._error))
        if status != 0 and status not in allowed:
            self._raise(name, status, self._error.text.decode(errors="replace"))
        return status

    def tags(self, policies: dict[str, int]) -> None:
        """Before join: the parts of this engine's memory and what happens to each on park."""
        tags = (_Tag * len(policies))(*[_Tag(name.encode(), policy) for name, policy in policies.items()])
        self._call("gms_tags_set", self._handle, tags, _u32(len(policies)))

    def join(self, identity: Identity) -> Membership:
        words = [value.encode() if isinstance(value, str) else value for value in dataclasses.astuple(identity)]
        member = _Membership()
        self._call("gms_join", self._handle, c.byref(_Identity(*words)), c.byref(member))
        return Membership(member.world, member.incarnation, member.epoch, member.rank, member.world_size,
                          member.engine_id, bool(member.kv_verify_full))

    def exchange(self, name: str, data: bytes = b"", value: int = 0) -> bytes:
        """What rank 0 gives (at most 128 bytes), on every rank; `value` must be equal on all."""
        got, length = c.create_string_buffer(_EXCHANGE_BYTES), _u32()
        self._call("gms_exchange", self._handle, name.encode(), _u64(value), data, _u32(len(data)), got,
                   c.byref(length))
        return got.raw[:length.value]

    def communicator(self, library: Optional[str] = None, timeout_ms: int = 0) -> Communicator:
        """NCCL between the ranks of this incarnation: on all ranks or on none, after join and before park."""
        if library is None and "GMS_NCCL_LIBRARY" not in os.environ:
            library = _wheel_of_nccl()
        options = _NcclOptions(library.encode() if library is not None else None, timeout_ms, 0)
        handle = _pointer()
        self._call("gms_nccl_open", self._handle, c.byref(options), c.byref(handle))
        return Communicator(self, handle)

    def _attach(self, **description) -> Pool:
        handle = _pointer()
        while self._call("gms_pool_attach", self._handle, c.byref(_Description(**description)), c.byref(handle),
                         allowed=(AGAIN,)) != 0:
            pass
        return Pool(self, handle, description["kind"])

    def weights(self, name: str, length: int) -> Pool:
        return self._attach(name=name.encode(), kind=WEIGHTS, bytes=length)

    def kv_budget(self) -> int:
        """Bytes that the kv pools of each rank may have, agreed by all: after the weights, before the first kv pool."""
        number = _u64()
        while self._call("gms_kv_budget", self._handle, c.byref(number), allowed=(AGAIN,)) != 0:
            pass
        return number.value

    @property
    def parking_preset(self) -> str:
        return self._gms.gms_parking_preset(self._handle).decode()

    def kv(self, name: str, slot_count: int, block_bytes: int) -> Pool:
        return self._attach(name=name.encode(), kind=KV, slot_count=slot_count, block_bytes=block_bytes)

    def park(self) -> None:
        self._call("gms_park", self._handle)

    def wait_promotion(self, timeout_ms: int = -1) -> Optional[int]:
        """The epoch to serve under; None: not promoted within the time, or there is no coordinator now."""
        promotion = _Promotion()
        status = self._call("gms_wait_promotion", self._handle, c.c_int32(timeout_ms), c.byref(promotion),
                            allowed=(TIMEOUT, DISCONNECTED))
        return promotion.epoch if status == 0 else None

    def adopt(self) -> Adoption:
        adoption = _Adoption()
        self._call("gms_adopt", self._handle, c.byref(adoption))
        return Adoption(*[getattr(adoption, field.name) for field in dataclasses.fields(Adoption)])

    def wake(self) -> None:
        self._call("gms_wake", self._handle)

    def serve(self, endpoint: Optional[str]) -> None:
        self._call("gms_serve", self._handle, endpoint.encode() if endpoint is not None else None)

    @contextlib.contextmanager
    def torch_memory(self, tag: str):
        """What PyTorch allocates inside, in this thread, is memory under the tag. Keep its tensors no longer than this
        session. In a graph capture PyTorch uses a pool of its own: capture outside."""
        import torch

        if tag not in self._torch_pools:
            allocator = torch.cuda.memory.CUDAPluggableAllocator(os.path.realpath(self._gms._name)
                                                                 if "/" in self._gms._name else self._gms._name,
                                                                 "gms_torch_alloc", "gms_torch_free")
            self._torch_pools[tag] = (torch.cuda.MemPool(allocator.allocator()), allocator)
        self._call("gms_torch_scope", self._handle, tag.encode())
        try:
            with torch.cuda.use_mem_pool(self._torch_pools[tag][0]):
                yield
        finally:
            self._call("gms_torch_scope", None, None)

    def step_submitted(self, token: int, stream: int) -> None:
        """`token` is all that was submitted to `stream` (torch.cuda.Stream.cuda_stream: the one that wrote) until now."""
        self._call("gms_step_submitted", self._handle, _u64(token), _pointer(stream))

    def step_poll(self) -> bool:
        """Completes what the device has come past; False: some steps are still under way."""
        return self._call("gms_step_poll", self._handle, allowed=(NOT_DONE,)) == 0

    def step_begin(self) -> int:
        return self._gms.gms_step_begin(self._handle)

    def step_complete(self, token: int) -> None:
        self._gms.gms_step_complete(self._handle, token)

    def progress(self) -> None:
        self._gms.gms_progress(self._handle)

    def work(self, count: int) -> None:
        """How many requests run or wait: with some, an engine that makes no progress is succeeded."""
        self._gms.gms_work(self._handle, count)

    def busy(self, duration_ms: int) -> None:
        self._gms.gms_busy(self._handle, _u32(duration_ms))

    @property
    def asked_to_park(self) -> bool:
        """An operator wants this engine out of service: close the session and end. To be asked after wait_promotion."""
        return bool(self._gms.gms_asked_to_park(self._handle))

    def report_sticky_error(self, code: int, text: str) -> None:
        self._call("gms_report_sticky_error", self._handle, c.c_int32(code), text.encode())

    def tag_reports(self) -> list[TagReport]:
        reports, report = [], _TagReport()
        while self._gms.gms_tag_report(self._handle, _u32(len(reports)), c.byref(report)) == 0:
            reports.append(TagReport(report.tag.name.decode(), report.tag.policy, report.bytes, report.park_ns,
                                     report.wake_ns))
        return reports

    @property
    def event_fd(self) -> int:
        return self._gms.gms_event_fd(self._handle)

    @property
    def mapping_epoch(self) -> int:
        return self._gms.gms_mapping_epoch(self._handle)

    @property
    def driver_calls(self) -> int:
        """Calls of the device's driver that libgms has made in this process."""
        return self._gms.gms_driver_calls()

    def close(self) -> None:
        self._gms.gms_close(self._handle)
        self._handle = _pointer()
