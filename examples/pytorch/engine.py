#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An inference engine in Python with failover: minillm's protocol and log, so that gms-failover-test drives it unchanged.

    mpirun -n 2 gms-exec --run-dir DIR --engine 0 -- python3 engine.py --listen unix:/tmp/e0 --log-dir /tmp/logs

`--model qwen3` is a decoder in PyTorch (qwen3.py), `--model toy` needs no PyTorch. The engine keeps its own scheduler, block
hashes, free list and eviction; libgms answers and schedules nothing.
"""
import argparse
import ctypes
import gc
import hashlib
import importlib
import os
import select
import signal
import sys
import time

import gms
import private
from endings import ENDINGS, Endings, WildStore
from ranks import Ranks
from scheduler import HASH_ALGORITHM, HASH_SEED, Scheduler, Slots
from server import Listener, Server
from worker import Log, Worker

ALIGNMENT = 256
IDLE, SEALED = 0, 2  # states of a slot; greater ones are out of use
UNREADABLE = 255  # sealed, and its record cannot be read
EXIT_DEVICE_LOST = 70
STEPS = ("promoted", "adopted", "woken", "serving")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", required=True, help="unix:PATH, for rank 0")
    parser.add_argument("--log-dir")
    parser.add_argument("--model", choices=("qwen3", "toy"), default="qwen3")
    parser.add_argument("--shape", choices=("0.6b", "tiny"), default="0.6b", help="of the decoder")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: no graphs, pools of host memory")
    parser.add_argument("--weights", help="directory with *.safetensors; default: random numbers")
    parser.add_argument("--model-seed", type=int, default=1)
    parser.add_argument("--graphs", default="4,16,64", metavar="ROWS,...", help="one graph for each, and one for 64 rows")
    parser.add_argument("--sums", choices=("auto", "nccl"), default="auto",
                        help="how ranks are added up; auto: NCCL where each has its own GPU, shared memory where they share one")
    parser.add_argument("--slots", type=int, default=512, help="0: as many as the agreed budget has room for")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=768, help="prompt and answer of one request")
    parser.add_argument("--no-gms", action="store_true", help="private memory and no failover, to compare with")
    parser.add_argument("--hold-back", type=float, default=0, metavar="GIB",
                        help="memory that is given back while parked, and some that is saved: what tags do")
    drills = parser.add_argument_group("for drills")
    drills.add_argument("--poison", default="none", metavar="SLOT|all[@RANK]",
                        help="a promoted engine overwrites it with noise before it adopts")
    drills.add_argument("--die-after", default="none", metavar="STEP[@RANK]",
                        help=f"a promoted engine's rank is killed then: {', '.join(STEPS)}")
    options = parser.parse_args()
    if options.model == "toy":
        options.device = "cpu"
    if options.no_gms and options.slots == 0:
        parser.error("--no-gms needs --slots: there is no budget without a group")
    return options


class Drill:
    """What --poison and --die-after ask of this rank."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        self._poison, self._step = self._mine(options.poison, rank), self._mine(options.die_after, rank)
        self._slots = options.slots

    @staticmethod
    def _mine(text: str, rank: int) -> str:
        what, _, where = text.partition("@")
        return what if where in ("", str(rank)) else "none"

    def poison(self, model) -> None:
        if self._poison != "none":
            for slot in range(self._slots) if self._poison == "all" else [int(self._poison)]:
                model.poison(slot)

    def past(self, step: str) -> None:
        if self._step == step:
            ENDINGS["sigkill"]()


def who_am_i(options: argparse.Namespace) -> tuple[int, int, str]:
    """Rank, number of ranks, and what only the ranks of this start have in common."""
    if options.no_gms:
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), f"private|{options.listen}"
    missing = [name for name in ("GMS_RUN_DIR", "GMS_LAUNCH_ID", "ENGINE_ID", "GMS_RANK", "GMS_WORLD_SIZE")
               if name not in os.environ]
    if missing:
        sys.exit(f"error: {missing[0]} is not set: start this with gms-exec, or give --no-gms")
    start = "|".join(os.environ[name] for name in ("GMS_RUN_DIR", "GMS_LAUNCH_ID", "ENGINE_ID"))
    return int(os.environ["GMS_RANK"]), int(os.environ["GMS_WORLD_SIZE"]), start


def choose_device(weights: gms.Pool) -> None:
    """PyTorch computes where the pools are."""
    import torch

    ordinal = ctypes.c_int(-1)
    result = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(ctypes.byref(ordinal), ctypes.c_int(9),
                                                               ctypes.c_uint64(weights.address))
    if result != 0 or ordinal.value < 0:
        sys.exit(f"error: the driver does not say on which GPU the pool of weights is (CUDA error {result})")
    torch.cuda.set_device(ordinal.value)


def attach(options: argparse.Namespace, model, session: gms.Session) -> tuple[gms.Pool, gms.Pool]:
    """Weights: whoever is first fills them. KV: scratch until this engine parks."""
    places, offset = {}, 0
    for name, length in model.weight_sizes().items():
        padded = -(-length // ALIGNMENT) * ALIGNMENT
        places[name] = (offset, padded)
        offset += padded
    weights = session.weights("weights", offset)
    if weights.on_device != (options.device == "cuda"):
        sys.exit(f"error: pools are memory of {'a GPU' if weights.on_device else 'the host'}, and this engine computes on "
                 f"{options.device}: let memory.backend be {'cuda' if options.device == 'cuda' else 'host'}, or see --device")
    if weights.on_device:
        choose_device(weights)
    if options.slots == 0:
        options.slots = session.kv_budget() // model.block_bytes
    kv = session.kv("kv", options.slots, model.block_bytes)
    kv.tail_layout(*model.tail_layout)
    if weights.must_publish:
        model.write_weights(weights, places)
        for name, (place, length) in places.items():
            weights.describe(name, place, length)
        weights.publish()
    for name, place in places.items():
        if weights.find(name) != place:
            sys.exit(f"error: tensor {name} is not where this program expects it")
    model.bind(weights, places, kv, options.slots, session)
    return weights, kv


def hold_back(options: argparse.Namespace, session: gms.Session):
    """Memory of PyTorch under two more tags; returns the check of what was saved."""
    import torch

    with session.torch_memory("scratch"):
        scratch = torch.zeros(int(options.hold_back * 2**30), dtype=torch.uint8, device="cuda")
    with session.torch_memory("state"):
        state = torch.arange(2**22, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()

    def is_whole() -> bool:
        scratch.fill_(1)  # the same address, other memory
        return bool((state == torch.arange(2**22, dtype=torch.int32, device="cuda")).all())

    return is_whole


def wait_promotion(session: gms.Session, ranks: Ranks, ending: list) -> int | None:
    """The epoch; None: asked to end."""
    poll = select.poll()
    poll.register(session.event_fd, select.POLLIN)
    while not ending:
        epoch = session.wait_promotion(0)
        if epoch is not None:
            return epoch
        poll.poll(500)
        ranks.check()
    return None


class Watch:
    """What the promotion took, step by step."""

    def __init__(self) -> None:
        self._at, self.text = time.monotonic_ns(), []

    def __call__(self, step: str) -> None:
        now = time.monotonic_ns()
        self.text.append(f"{step} {(now - self._at) / 1e6:.2f}")
        self._at = now


class Engine:
    """One rank from its first call to its last."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._ending, begun = options, [], time.monotonic()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda *_: self._ending.append(True))
        rank, size, start = who_am_i(options)
        self._session = session = private.Session(options.device) if options.no_gms else gms.Session()
        if options.hold_back:
            session.tags({"weights": gms.KEEP, "kv": gms.SWAP, "graphs": gms.KEEP, "scratch": gms.RELEASE,
                          "state": gms.SAVE})
        self._ranks = Ranks(rank, size, start)
        self._model = model = importlib.import_module(options.model).Model(options, self._ranks)
        self._member = session.join(gms.Identity(model.name, model.dtype, model.layout, HASH_ALGORITHM, "engine.py", "2",
                                                 HASH_SEED, options.block_tokens, size))
        self._log = Log(options.log_dir, self._member)
        self._log("join")
        _, self._kv = attach(options, model, session)
        session.busy(60000)
        model.warm_up()
        self._held = hold_back(options, session) if options.hold_back else None
        # Everything that a promotion will need, so that it makes nothing but calls.
        self._endings = Endings(self._wild_store() if options.device == "cuda" else None)
        self._drill = Drill(options, rank)
        self._worker = Worker(model, session, self._kv, self._ranks, self._endings, self._log)
        self._slots = Slots()
        self._scheduler = Scheduler(model.rows, options.block_tokens, self._worker.lead, self._slots, self._log)
        self._server = self._listener = None
        if rank == 0:
            self._listener = Listener(options.listen, self._member.engine_id)
            self._server = Server(options, self._listener, self._member, self._scheduler, self._slots, self._arm,
                                  session.event_fd, self._heard)
        self._captures = model.graph_captures
        gc.collect()
        gc.freeze()
        session.park()
        self._log("parked")
        print(f"engine {self._member.engine_id} rank {rank} parked after {time.monotonic() - begun:.1f} s{model.report()}",
              flush=True)

    def _wild_store(self):
        store = WildStore()
        return lambda: store(self._model.stream)

    def _arm(self, message: dict) -> None:
        """Rank 0: arms the rank that is named, or all."""
        self._endings.check(message)
        wanted = message.get("rank", 0)
        if wanted != "all" and not (isinstance(wanted, int) and 0 <= wanted < self._ranks.size):
            raise ValueError(f"rank {wanted} does not exist")
        if wanted in ("all", 0):
            self._endings.arm(message)
        if wanted != 0:
            self._ranks.tell({"arm": message, "rank": wanted})

    def _heard(self) -> None:
        self._session.wait_promotion(0)  # lets messages in; raises when this engine must end
        if self._session.asked_to_park:
            self._ending.append(True)
        for slot in self._kv.returned():
            self._slots.returned(slot)

    def _fill(self, tails: list) -> None:
        """What was adopted becomes the prefix cache of rank 0; slots are free that are so on every rank. Done while clients come:
        a slot that has come back from quarantine before this is free, and its tail is nothing any more; of later ones Slots is
        told. `tails` were looked at before serving, when they were the same on every rank."""
        blocks = self._kv.sealed()
        states = bytearray(self._kv.states(self._options.slots).replace(bytes([SEALED]), bytes([UNREADABLE])))
        for block in blocks:
            states[block.slot] = SEALED
        self._worker.adopt(blocks, tails)
        digest = hashlib.blake2b(repr(tails).encode(), digest_size=16).digest()
        everybody = self._ranks.gather(states + digest)
        if self._ranks.rank == 0:
            same = all(rank[-len(digest):] == digest for rank in everybody)  # as libgms promises
            worst = bytes(map(max, zip(*everybody)))[:len(states)]
            free = [slot for slot, state in enumerate(worst) if state == IDLE]
            blocks = [block for block in blocks if worst[block.slot] == SEALED]
            lost = [slot for slot, state in enumerate(worst) if state not in (IDLE, SEALED)]
            self._slots.adopt(blocks, free, tails if same else [], lost)

    def serve(self) -> None:
        """Waits for the promotion, takes over and serves until asked to end."""
        session, log, rank = self._session, self._log, self._ranks.rank
        epoch = wait_promotion(session, self._ranks, self._ending)
        if epoch is None:
            return
        watch = Watch()
        self._calls = session.driver_calls
        log(f"promoted epoch={epoch}")
        self._drill.past("promoted")
        self._drill.poison(self._model)
        adoption = session.adopt()
        log(f"adopted count={adoption.adopted}")
        self._drill.past("adopted")
        watch("adopt")
        session.wake()
        for report in session.tag_reports():
            log(f"wake tag={report.name} bytes={report.bytes} ns={report.wake_ns}")
        if self._held is not None and not self._held():
            sys.exit("error: what was saved while parked is not what it was")
        watch("wake")
        verified = self._model.verify()
        log("woken")
        self._drill.past("woken")
        watch("verify")
        if rank == 0:
            self._server.epoch, self._server.adopted = epoch, adoption.adopted
            self._listener.open()
        tails = list(self._kv.tails())
        session.serve(self._options.listen if rank == 0 else None)
        log(f"serving epoch={epoch}")
        watch("serve")
        self._fill(tails)
        watch("fill")
        calls = session.driver_calls - self._calls
        self._drill.past("serving")
        if rank == 0:
            print(f"serving {self._options.listen}", flush=True)
        print(f"rank {rank} promoted, ms: {', '.join(watch.text)}; verification {verified / 1e6:.2f}; driver calls of the "
              f"promotion: {calls}; graphs captured before it: {self._captures}", flush=True)
        if rank == 0:
            self._lead()
        else:
            self._worker.follow()
        print(f"rank {rank}: graphs captured after the promotion: {self._model.graph_captures - self._captures}", flush=True)
        log("end")

    def _lead(self) -> None:
        busy, said, served = False, -1, False
        while not self._ending:
            busy = self._server.turn(busy)
            if busy and not served:
                served = True
                print(f"driver calls from the promotion to the first tokens: {self._session.driver_calls - self._calls}",
                      flush=True)
            work = len(self._scheduler.running) + len(self._scheduler.waiting)
            if work != said:
                self._session.work(work)
                said = work
            self._ranks.check()
        self._ranks.tell({"end": True})

    def device_lost(self, problem: RuntimeError) -> None:
        """Says so and ends at once: a lost context lets nothing be tidied up."""
        self._session.report_sticky_error(1, str(problem).splitlines()[0])
        os._exit(EXIT_DEVICE_LOST)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._model.close()
        self._session.close()


def main() -> None:
    engine = None
    try:
        engine = Engine(parse())
        engine.serve()
        engine.close()
    except gms.GmsError as problem:
        sys.exit(f"error: {problem}")
    except RuntimeError as problem:  # PyTorch's word for a device that is lost
        if engine is None or "CUDA" not in str(problem):
            raise
        engine.device_lost(problem)


if __name__ == "__main__":
    main()
