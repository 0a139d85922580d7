#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of examples/pytorch's engine with and without gms-failover, by turns in one process.

    python3 torch_steady.py --bin BUILD --work DIR [--device cpu --shape tiny]

Two copies of the model lie side by side: one in the pools of a deployment that this program starts, its engine promoted and
serving; one in private memory, with nobody behind it. Scheduler, worker and requests are the same. Told are the medians of
both, their ratio, and system calls that are counted where there is no strace: reads and writes (/proc/self/io), and how often
the process went to sleep. Exit: 0 the ratio is at least 0.99 and no such call came with us, 1 not, 77 no GPU.
"""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "examples", "pytorch"))
ROUNDS, REQUESTS, TOKENS, LEAST = 8, 16, 64, 0.99


def options_of(arguments) -> argparse.Namespace:
    return argparse.Namespace(weights=None, model_seed=1, graphs="4,16,64", sums="auto", slots=256, block_tokens=16, max_tokens=768,
                              device=arguments.device, shape=arguments.shape)


class Side:
    """One copy of the model with a scheduler of its own."""

    def __init__(self, options, session, with_gms: bool) -> None:
        from endings import Endings
        from engine import HASH_ALGORITHM, HASH_SEED, attach
        from ranks import Ranks
        from scheduler import Scheduler, Slots
        from torch_check import Quiet
        from worker import Worker
        import gms
        import qwen3

        self.tokens, self._seed = 0, 0
        ranks = Ranks(0, 1, "")
        self.model = qwen3.Model(options, ranks)
        session.join(gms.Identity(self.model.name, "bf16", self.model.layout, HASH_ALGORITHM, "torch_steady", "1", HASH_SEED,
                                  options.block_tokens, 1))
        _, kv = attach(options, self.model, session)
        session.busy(60000)
        self.model.warm_up()
        if with_gms:
            session.park()
            while session.wait_promotion(500) is None:
                pass
            session.adopt()
            session.wake()
            session.serve("none")
        self._slots = Slots()
        self._slots.free.extend(range(options.slots))
        worker = Worker(self.model, session, kv, ranks, Endings(None), Quiet())
        self._scheduler = Scheduler(self.model.rows, options.block_tokens, worker.lead, self._slots, Quiet())

    def say(self, line: dict) -> None:
        self.tokens += "token" in line

    def turn(self, seed: int) -> float:
        """Seconds a token of so many new requests."""
        from scheduler import Request
        from torch_check import prompts

        self.tokens = 0
        for i, prompt in enumerate(prompts(seed, REQUESTS, 100, 101)):
            self._scheduler.submit(Request(self, {"id": str(i), "temperature": 0, "seed": i}, prompt, 0,
                                           len(prompt) + TOKENS))
        begun = time.perf_counter()
        while self._scheduler.step():
            pass
        return (time.perf_counter() - begun) / self.tokens


def counters() -> tuple[int, int, int]:
    """Reads, writes, times asleep."""
    with open("/proc/self/io", encoding="ascii") as file:
        io = dict(line.split(": ") for line in file.read().splitlines())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int(io["syscr"]), int(io["syscw"]), usage.ru_nvcsw


def inside(arguments) -> int:
    import gms
    import private

    options = options_of(arguments)
    sides = {"with": Side(options, gms.Session(), True), "without": Side(options, private.Session(options.device), False)}
    seconds = {name: [] for name in sides}
    calls = {name: [0, 0, 0] for name in sides}
    tokens = {name: 0 for name in sides}
    for turn in range(2 * ROUNDS + 2):
        order = ("with", "without") if turn % 2 else ("without", "with")
        for name in order:
            before = counters()
            each = sides[name].turn(turn)
            if turn < 2:
                continue
            for i, (old, new) in enumerate(zip(before, counters())):
                calls[name][i] += new - old
            seconds[name].append(each)
            tokens[name] += sides[name].tokens
    rate = {name: 1 / statistics.median(values) for name, values in seconds.items()}
    ratio = statistics.median(b / a for a, b in zip(seconds["with"], seconds["without"]))
    for name in sides:
        spread = sorted(1 / value for value in seconds[name])
        print(f"  {name}: {rate[name]:.0f} tokens a second (least {spread[0]:.0f}, greatest {spread[-1]:.0f}); for "
              f"{tokens[name]} tokens {calls[name][0]} reads, {calls[name][1]} writes, {calls[name][2]} times asleep")
    more = [calls["with"][i] - calls["without"][i] for i in range(2)]
    print(f"  ratio of {len(seconds['with'])} pairs, median: {ratio:.4f}; reads and writes more with us: {more[0]}, {more[1]}")
    good = ratio >= LEAST and max(more) <= 0
    print("good" if good else "NOT GOOD", flush=True)
    os._exit(0 if good else 1)


def deployment(arguments) -> int:
    run_dir, config = os.path.join(arguments.work, "r"), os.path.join(arguments.work, "steady.cfg")
    backend = "host" if arguments.device == "cpu" else "cuda"
    with open(config, "w", encoding="ascii") as file:
        file.write(f'deployment = "steady"; run_dir = "{run_dir}"; ranks = 1;\nmemory : {{ backend = "{backend}"; capacity = '
                   f'"4GiB"; }};\nkv : {{ verify = "none"; }};\ntimeouts : {{ operation = "60s"; round = "20s"; heartbeat = '
                   f'"20s"; }};\ncomplete = true;\n')

    def program(name: str) -> str:
        return os.path.join(arguments.bin, name)

    with open(os.path.join(arguments.work, "up.log"), "wb") as log:
        up = subprocess.Popen([program("gms-up"), "--config", config], stdout=log, stderr=log)
    try:
        waited = subprocess.run([program("gms-ctl"), "--run-dir", run_dir, "wait", "up"], timeout=60, check=False)
        if waited.returncode:
            with open(os.path.join(arguments.work, "up.log"), encoding="utf-8", errors="replace") as log:
                print(log.read())
            return 1
        return subprocess.run(["mpirun", "-n", "1", program("gms-exec"), "--run-dir", run_dir, "--engine", "0", "--",
                               sys.executable, os.path.abspath(__file__), "--inside", "--device", arguments.device, "--shape",
                               arguments.shape], timeout=110, check=False).returncode
    finally:
        for command in ([program("gms-ctl"), "--run-dir", run_dir, "down"],
                        [program("gms-keeper"), "--run-dir", run_dir, "--stop", "--force"]):
            subprocess.run(command, timeout=30, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        up.terminate()
        up.wait(20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin")
    parser.add_argument("--work")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", default="0.6b")
    parser.add_argument("--inside", action="store_true")
    arguments = parser.parse_args()
    if not arguments.inside:
        return deployment(arguments)
    return inside(arguments)


if __name__ == "__main__":
    sys.exit(main())
