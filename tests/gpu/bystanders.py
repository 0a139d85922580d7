#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a SIGKILL of processes with work on some GPUs does to others: on the same GPUs, and on the rest of the host.

On each GPU a bystander does one thing again and again and notes how long each time took: it launches a small kernel and waits
for it; or allocates and frees device memory (the driver, which maps and unmaps); or adds up with the other bystanders through
NCCL. On half of the GPUs a victim replays a graph, with 4 GiB of its own. All victims get SIGKILL at once. Told are the slowest
time before and after it, on GPUs with a victim and without; and when the victims were gone.

Then the same for the ranks of an engine that lost one of them: on each GPU a victim whose collective waits for a rank that does
not come, so its kernel runs on, until long after the SIGKILL. Told is how long the bystanders' own all-reduce takes meanwhile.

    python3 bystanders.py [--gpus N] [--victims-on K]      by itself, or from torch.sh
"""
import argparse
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

KINDS = ("launch", "driver", "nccl")
BEFORE_S, AFTER_S, READY_S = 1.5, 1.5, 60.0


def victim(gpu: int) -> None:
    import torch
    torch.cuda.set_device(gpu)
    own = torch.ones(2**30, dtype=torch.float32, device="cuda")
    square = torch.randn(2048, 2048, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        square @ square
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(20):
                square @ square
    print("ready", own.numel(), flush=True)
    while True:
        graph.replay()
        stream.synchronize()


def stranded(gpu: int, gpus: int, place: str) -> None:
    """A rank of NCCL; when it is told to, all but rank 0 begin a collective, which never ends."""
    import torch
    import torch.distributed as distributed
    torch.cuda.set_device(gpu)
    distributed.init_process_group("nccl", init_method=f"file://{place}", rank=gpu, world_size=gpus,
                                   device_id=torch.device("cuda", gpu))
    many = torch.ones(64 * 1024, dtype=torch.bfloat16, device="cuda")
    for _ in range(5):
        distributed.all_reduce(many)
    torch.cuda.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    if gpu != 0:
        distributed.all_reduce(many)
    time.sleep(600)


def bystander(gpu: int, gpus: int, kind: str, place: str) -> None:
    import torch
    torch.cuda.set_device(gpu)
    x = torch.ones(1024, device="cuda")
    if kind == "nccl":
        import torch.distributed as distributed
        distributed.init_process_group("nccl", init_method=f"file://{place}", rank=gpu, world_size=gpus,
                                       device_id=torch.device("cuda", gpu))
        many = torch.ones(64 * 1024, dtype=torch.bfloat16, device="cuda")

    def act() -> None:
        if kind == "launch":
            x.add_(1)
        elif kind == "driver":
            part = torch.cuda.memory.caching_allocator_alloc(64 << 20)
            torch.cuda.memory.caching_allocator_delete(part)
            torch.cuda.empty_cache()
        else:
            distributed.all_reduce(many)
            many.fill_(1)
        torch.cuda.synchronize()

    for _ in range(50):
        act()
    print("ready", flush=True)
    begun = time.monotonic_ns()
    # NCCL's turns are counted, so that all of them make as many; the others stop when they are told to.
    turns, times = 0, []
    while True:
        at = time.monotonic_ns()
        act()
        times.append((at, time.monotonic_ns() - at))
        turns += 1
        if kind == "nccl":
            stop = torch.tensor([float(times[-1][0] - begun > 60e9 or bool(select.select([0], [], [], 0)[0]))], device="cuda")
            if turns % 50 == 0:
                distributed.all_reduce(stop)
                if stop.item() > 0:
                    break
        elif select.select([0], [], [], 0)[0]:
            break
    with open(f"{place}.{gpu}", "w", encoding="ascii") as file:
        file.writelines(f"{at} {took}\n" for at, took in times)
    os._exit(0)


def start(*arguments) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), *map(str, arguments)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)


def wait_ready(processes: list) -> None:
    limit = time.monotonic() + READY_S
    for process in processes:
        if not select.select([process.stdout], [], [], max(limit - time.monotonic(), 0))[0]:
            raise SystemExit(f"bystanders.py: a process was not ready within {READY_S:.0f} s")
        if not process.stdout.readline().startswith("ready"):
            raise SystemExit("bystanders.py: a process ended before it was ready")


def measure(kind: str, gpus: int, with_victim: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        observers = [start("bystander", gpu, gpus, kind, f"{place}/{kind}") for gpu in range(gpus)]
        victims = [start("victim", gpu) for gpu in range(with_victim)]
        try:
            wait_ready(victims + observers)
            pidfds = [os.pidfd_open(process.pid) for process in victims]
            time.sleep(BEFORE_S)
            killed = time.monotonic_ns()
            for pidfd in pidfds:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            gone = []
            limit = time.monotonic() + 10
            left = list(pidfds)
            while left and time.monotonic() < limit:
                for pidfd in select.select(left, [], [], 1)[0]:
                    gone.append((time.monotonic_ns() - killed) / 1e6)
                    left.remove(pidfd)
            time.sleep(AFTER_S)
            for process in observers:
                process.stdin.write("stop\n")
                process.stdin.flush()
            for process in observers:
                process.wait(20)
            for where, which in (("with a victim", range(with_victim)), ("without", range(with_victim, gpus))):
                before, after, count = 0.0, 0.0, 0
                for gpu in which:
                    with open(f"{place}/{kind}.{gpu}", encoding="ascii") as file:
                        for line in file:
                            at, took = map(int, line.split())
                            count += 1
                            if killed - BEFORE_S * 1e9 < at and at + took < killed:
                                before = max(before, took / 1e6)
                            elif at + took >= killed:
                                after = max(after, took / 1e6)
                if count:
                    print(f"  | {kind} | {len(which)} GPUs {where} | {count} | {before:.2f} | {after:.2f} | "
                          f"{min(gone, default=0):.0f} .. {max(gone, default=0):.0f} |", flush=True)
        finally:
            end(victims + observers)


def end(processes: list) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def measure_stranded(gpus: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        observers = [start("bystander", gpu, gpus, "nccl", f"{place}/nccl") for gpu in range(gpus)]
        victims = [start("stranded", gpu, gpus, f"{place}/stranded") for gpu in range(gpus)]
        try:
            wait_ready(victims + observers)
            pidfds = [os.pidfd_open(process.pid) for process in victims]
            time.sleep(BEFORE_S)
            begun = time.monotonic_ns()
            for process in victims:
                process.stdin.write("begin\n")
                process.stdin.flush()
            time.sleep(BEFORE_S)
            killed = time.monotonic_ns()
            for pidfd in pidfds:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            for pidfd in pidfds:
                select.select([pidfd], [], [], 10)
            gone = (time.monotonic_ns() - killed) / 1e6
            time.sleep(AFTER_S)
            for process in observers:
                process.stdin.write("stop\n")
                process.stdin.flush()
            for process in observers:
                process.wait(20)
            with open(f"{place}/nccl.0", encoding="ascii") as file:
                times = [tuple(map(int, line.split())) for line in file]
        finally:
            end(victims + observers)
    phases = [("before", begun - BEFORE_S * 1e9, begun), ("beside a collective that waits", begun + 1e8, killed),
              ("0 to 20 ms after the SIGKILL", killed, killed + 2e7), ("20 to 100 ms", killed + 2e7, killed + 1e8),
              ("100 to 500 ms", killed + 1e8, killed + 5e8), ("later", killed + 5e8, float("inf"))]
    print(f"  the stranded were gone {gone:.0f} ms after the SIGKILL\n  | an all-reduce of the bystanders | times | median, ms | "
          "slowest, ms |\n  |---|---|---|---|")
    for name, since, until in phases:
        took = sorted(duration / 1e6 for at, duration in times if since <= at < until)
        if took:
            print(f"  | {name} | {len(took)} | {took[len(took) // 2]:.3f} | {took[-1]:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--victims-on", type=int)
    options = parser.parse_args()
    import torch
    gpus = options.gpus or torch.cuda.device_count()
    some = options.victims_on or max(gpus // 2, 1)
    print("  | does | on | times | slowest before, ms | slowest after the SIGKILL, ms | victims gone, ms |\n  |---|---|---|---|---|---|")
    for kind in KINDS:
        if kind != "nccl" or gpus > 1:
            measure(kind, gpus, some)
    if gpus > 1:
        measure_stranded(gpus)


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        victim(int(sys.argv[2]))
    elif sys.argv[1:2] == ["stranded"]:
        stranded(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    elif sys.argv[1:2] == ["bystander"]:
        bystander(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
    else:
        main()
