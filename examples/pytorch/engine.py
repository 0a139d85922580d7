#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An inference engine in Python with failover: minillm's protocol and log, so that gms-failover-test drives it unchanged.

    mpirun -n 1 gms-exec --run-dir DIR --engine 0 -- python3 engine.py --listen unix:/tmp/e0 --log-dir /tmp/logs

One rank. `--model qwen3` is a decoder in PyTorch (qwen3.py), `--model toy` needs no PyTorch. The engine keeps its own
scheduler, block hashes, free list and eviction; libgms answers and schedules nothing.
"""
import argparse
import collections
import hashlib
import importlib
import json
import math
import os
import selectors
import signal
import socket
import sys
import time

import gms

HASH_SEED, NO_BLOCK, ALIGNMENT = 7, bytes(16), 256


# ------------------------------------------------------------------------------------------------------------ log ----

class Log:
    """One line an event, one write a line: what drills judge from."""

    def __init__(self, directory, member):
        self._fd = -1
        if directory:
            path = os.path.join(directory, f"engine{member.engine_id}.{member.incarnation}.{member.rank}.log")
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __call__(self, text):
        if self._fd >= 0:
            os.write(self._fd, f"{time.monotonic_ns()} {text}\n".encode())

    @staticmethod
    def word(text):
        return "".join(f"%{b:02X}" if b <= 0x20 or b in b"%=\x7f" else chr(b) for b in text.encode())


# ---------------------------------------------------------------------------------------------------- prefix cache ---

def block_hash(parent, tokens):
    data = HASH_SEED.to_bytes(8, "little") + parent + b"".join(token.to_bytes(4, "little") for token in tokens)
    return hashlib.blake2b(data, digest_size=16).digest()


class Slots:
    """Free list, cached blocks by hash, reference counts; the least recently used cached block is evicted first."""

    def __init__(self, pool, count, log):
        self._pool, self._log = pool, log
        self.free = collections.deque(range(count))
        self.cached = {}  # hash: slot
        self._hash = {}  # slot: hash
        self._references = collections.Counter()
        self._idle = collections.OrderedDict()  # slots that are cached and not in use, oldest first
        self._generation = {}
        self.quarantined = 0

    def adopt(self, blocks, usable):
        depth, by_hash = {}, {block.hash: block for block in blocks}

        def depth_of(block):
            path = []
            while block is not None and block.hash not in depth and block.hash not in path:
                path.append(block.hash)
                block = by_hash.get(block.parent) if block.parent != NO_BLOCK else None
            below = depth.get(block.hash, 0) if block is not None else 0
            for key in reversed(path):
                below += 1
                depth[key] = below

        for block in blocks:
            depth_of(block)
        self.free = collections.deque(slot for slot in self.free if slot in usable)
        for block in sorted(by_hash.values(), key=lambda b: (-depth[b.hash], b.slot)):
            self.cached[block.hash] = block.slot
            self._hash[block.slot] = block.hash
            self._generation[block.slot] = block.generation
            self._idle[block.slot] = None

    def available(self):
        return len(self.free) + len(self._idle)

    def find(self, key):
        return self.cached.get(key)

    def use(self, slot):
        self._references[slot] += 1
        self._idle.pop(slot, None)

    def unuse(self, slot):
        self._references[slot] -= 1
        if self._references[slot] == 0:
            del self._references[slot]
            if slot in self._hash:
                self._idle[slot] = None
            else:
                self._pool.release(slot, self._generation.pop(slot))
                self.free.append(slot)

    def allocate(self):
        """A leased slot, written by nobody else."""
        while True:
            if self.free:
                slot = self.free.popleft()
            else:
                slot, _ = self._idle.popitem(last=False)
                del self.cached[self._hash.pop(slot)]
                self._pool.release(slot, self._generation.pop(slot))
            generation = self._pool.acquire(slot)
            if generation is None:
                self.quarantined += 1
                continue
            self._generation[slot] = generation
            self._references[slot] = 1
            self._log(f"write slot={slot} generation={generation}")
            return slot

    def seal(self, slot, key, parent, tokens, token):
        """The block is complete. A second copy of one that is cached stays private."""
        if key in self.cached:
            return
        generation = self._generation[slot]
        self._pool.seal(slot, generation, key, parent, tokens, token)
        self._log(f"seal slot={slot} generation={generation} hash={key.hex()}")
        self.cached[key] = slot
        self._hash[slot] = key


# -------------------------------------------------------------------------------------------------------- requests ---

class Request:
    def __init__(self, client, message, tokens, given, limit):
        self.client, self.id = client, message["id"]
        self.tokens, self.given = tokens, given  # prompt, what the client has already, what came since
        self.prompt = len(tokens)
        self.limit = limit  # of tokens in all
        self.temperature, self.seed = message.get("temperature", 0), message.get("seed", 0)
        self.text = message.get("text", False)
        self.slots, self.keys = [], []  # of blocks, in order; hashes of full ones
        self.done = 0  # tokens whose KV is there
        self.cached = 0

    def blocks(self, block_tokens):
        return -(-self.limit // block_tokens)


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & (1 << 64) - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (1 << 64) - 1
    return x ^ (x >> 31)


def sample(logits, temperature, seed, index):
    """Of the logits, the request's seed and the place in its answer, and of nothing else."""
    best = max(range(len(logits)), key=logits.__getitem__)
    if not temperature > 0:
        return best
    weights = [math.exp((value - logits[best]) / temperature) for value in logits]
    left = (mix(seed & (1 << 64) - 1 ^ mix(index)) >> 11) * 2.0**-53 * sum(weights)
    for token, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return token
    return best


class Scheduler:
    """Continuous batching: rows of one step are one token of each running request, or many of one that is prefilled."""

    def __init__(self, model, session, slots, log):
        self._model, self._session, self._slots, self._log = model, session, slots, log
        self.waiting, self.running = collections.deque(), []
        self.steps = 0
        self.arm = {}  # phase: how often it may still happen

    def submit(self, request):
        self.waiting.append(request)

    def cancel(self, client, key=None):
        for request in [r for r in self.running if r.client is client and key in (None, r.id)]:
            self._finish(request)
        self.waiting = collections.deque(r for r in self.waiting if r.client is not client or key not in (None, r.id))

    def _finish(self, request):
        self.running.remove(request)
        for slot in request.slots:
            self._slots.unuse(slot)
        request.slots = []

    def _admit(self):
        size = self._model.block_tokens
        while self.waiting:
            request, hits, parent = self.waiting[0], [], NO_BLOCK
            for start in range(0, len(request.tokens) - size, size):  # the last token is always computed
                key = block_hash(parent, request.tokens[start:start + size])
                slot = self._slots.find(key)
                if slot is None:
                    break
                hits.append((slot, key))
                parent = key
            promised = sum(r.blocks(size) - len(r.slots) for r in self.running)
            for slot, _ in hits:
                self._slots.use(slot)
            if len(self.running) == self._model.rows or \
                    request.blocks(size) - len(hits) + promised > self._slots.available():
                for slot, _ in hits:
                    self._slots.unuse(slot)
                return
            self.waiting.popleft()
            request.slots, request.keys = [slot for slot, _ in hits], [key for _, key in hits]
            request.done = request.cached = len(hits) * size
            self.running.append(request)

    def _die(self, phase):
        if self.arm.get(phase):
            self.arm[phase] -= 1
            if self.arm[phase] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def step(self):
        """One step of the model; new tokens go to the clients. False: nothing to do."""
        self._admit()
        if not self.running:
            return False
        size, plan, left = self._model.block_tokens, [], self._model.rows
        for index, request in enumerate(self.running):
            others = len(self.running) - index - 1
            count = max(1, min(left - others, len(request.tokens) - request.done))
            plan.append((request, count))
            left -= count
        rows = []
        for request, count in plan:
            while len(request.slots) * size < request.done + count:
                request.slots.append(self._slots.allocate())
            rows += [(request.tokens[i], i, request.slots) for i in range(request.done, request.done + count)]
        self._die("prefill" if any(count > 1 for _, count in plan) else "decode")
        token = self._session.step_begin()
        logits = self._model.step(rows)
        self._session.step_complete(token)
        self._session.progress()
        self.steps += 1
        at = 0
        for request, count in plan:
            at += count
            request.done += count
            self._seal(request, token)
            if request.done == len(request.tokens):
                self._emit(request, logits[at - 1])
        return True

    def _seal(self, request, token):
        size = self._model.block_tokens
        while (len(request.keys) + 1) * size <= request.done:
            index = len(request.keys)
            parent = request.keys[-1] if request.keys else NO_BLOCK
            key = block_hash(parent, request.tokens[index * size:(index + 1) * size])
            self._die("seal")
            self._slots.seal(request.slots[index], key, parent, size, token)
            request.keys.append(key)

    def _emit(self, request, logits):
        index = len(request.tokens) - request.prompt + request.given
        token = sample(logits, request.temperature, request.seed, index)
        line = {"id": request.id, "index": index, "token": token}
        if request.text:
            line["text"] = chr(token) if 0x20 <= token <= 0x7e or token == 10 else chr(0x100 + token)
        self._log(f"token id={Log.word(request.id)} index={index} token={token}")
        request.client.say(line)
        request.tokens.append(token)
        if len(request.tokens) == request.limit:
            self._finish(request)
            request.client.say({"id": request.id, "done": True, "reason": "length", "prompt_tokens": request.prompt,
                                "cached_tokens": request.cached, "computed_tokens": request.prompt - request.cached})


# ---------------------------------------------------------------------------------------------------------- server ---

class Client:
    LINE_BYTES, UNREAD_BYTES = 1 << 20, 8 << 20

    def __init__(self, connection, server):
        connection.setblocking(False)
        self.connection, self._server, self._in, self.out = connection, server, b"", b""

    def say(self, message):
        self.out += json.dumps(message, separators=(",", ":")).encode() + b"\n"

    def flush(self):
        """False: the client is gone, or does not read."""
        try:
            while self.out:
                self.out = self.out[self.connection.send(self.out, socket.MSG_NOSIGNAL):]
        except BlockingIOError:
            return len(self.out) <= self.UNREAD_BYTES
        except OSError:
            return False
        return True

    def lines(self):
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


def tokens_of(prompt):
    if isinstance(prompt, list):
        if not all(isinstance(token, int) and 0 <= token < 256 for token in prompt):
            raise ValueError("a token is a number from 0 to 255")
        return list(prompt)
    tokens = []
    for character in prompt:
        number = ord(character)
        tokens += [number - 0x100] if 0x100 <= number <= 0x1ff else list(character.encode())
    return tokens


class Server:
    def __init__(self, options, session, member, epoch, scheduler, slots, adopted):
        self._options, self._session, self._member, self._epoch = options, session, member, epoch
        self._scheduler, self._slots, self._adopted = scheduler, slots, adopted
        self._selector, self._clients = selectors.DefaultSelector(), set()
        kind, _, place = options.listen.partition(":")
        if kind != "unix":
            sys.exit(f"--listen {options.listen}: give unix:PATH")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.path.exists(place):
            os.unlink(place)  # the one that is promoted takes the endpoint over
        self._listener.bind(place)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(session.event_fd, selectors.EVENT_READ)

    def _answer(self, client, line):
        try:
            message = json.loads(line)
            operation = message["op"]
            if operation == "generate":
                self._generate(client, message)
            elif operation == "stats":
                client.say({"stats": {"sealed": len(self._slots.cached), "active": len(self._scheduler.running),
                                      "waiting": len(self._scheduler.waiting), "steps": self._scheduler.steps,
                                      "idle": len(self._slots.free), "quarantined": self._slots.quarantined,
                                      "adopted": self._adopted}})
            elif operation == "arm" and message.get("how", "sigkill") == "sigkill":
                self._scheduler.arm[message["at"]] = message["after"]
                client.say({"armed": True})
            else:
                raise ValueError(f"operation {operation} is unknown")
        except (ValueError, KeyError, TypeError) as problem:
            known = isinstance(locals().get("message"), dict) and isinstance(message.get("id"), str)
            client.say({**({"id": message["id"]} if known else {}), "error": str(problem)})

    def _generate(self, client, message):
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

    def _drop(self, client):
        self._scheduler.cancel(client)
        self._selector.unregister(client.connection)
        client.connection.close()
        self._clients.discard(client)

    def run(self, ending):
        busy = False
        while not ending:
            for key, _ in self._selector.select(0 if busy else 0.5):
                if key.fileobj is self._listener:
                    client = Client(self._listener.accept()[0], self)
                    self._clients.add(client)
                    self._selector.register(client.connection, selectors.EVENT_READ, client)
                    client.say({"hello": "minillm", "engine": self._member.engine_id,
                                "incarnation": self._member.incarnation, "epoch": self._epoch, "pid": os.getpid()})
                elif key.data is None:
                    self._session.wait_promotion(0)  # lets messages in; raises when this engine must end
                else:
                    lines = key.data.lines()
                    for line in lines or []:
                        self._answer(key.data, line)
                    if lines is None:
                        self._drop(key.data)
            busy = self._scheduler.step()
            self._session.work(len(self._scheduler.running) + len(self._scheduler.waiting))
            for client in list(self._clients):
                if client.out and not client.flush():
                    self._drop(client)


# ------------------------------------------------------------------------------------------------------------ life ---

def attach(options, model, session):
    """Weights: whoever is first fills them. KV: scratch until this engine parks."""
    places, offset = {}, 0
    for name, length in model.weight_sizes().items():
        padded = -(-length // ALIGNMENT) * ALIGNMENT
        places[name] = (offset, padded)
        offset += padded
    weights = session.weights("weights", offset)
    kv = session.kv("kv", options.slots, model.block_bytes)
    if weights.must_publish:
        model.write_weights(weights, places)
        for name, (place, length) in places.items():
            weights.describe(name, place, length)
        weights.publish()
    for name, place in places.items():
        if weights.find(name) != place:
            sys.exit(f"tensor {name} is not where this program expects it")
    model.bind(weights, places, kv, options.slots)
    return weights, kv


def hold_back(options, session):
    """Memory of PyTorch under two more tags; returns the check of what was saved."""
    import torch

    with session.torch_memory("scratch"):
        scratch = torch.zeros(int(options.hold_back * 2**30), dtype=torch.uint8, device="cuda")
    with session.torch_memory("state"):
        state = torch.arange(2**22, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()

    def is_whole():
        scratch.fill_(1)  # the same address, other memory
        return bool((state == torch.arange(2**22, dtype=torch.int32, device="cuda")).all())

    return is_whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", required=True, help="unix:PATH")
    parser.add_argument("--log-dir")
    parser.add_argument("--model", choices=("qwen3", "toy"), default="qwen3")
    parser.add_argument("--weights", help="directory with *.safetensors; default: random numbers")
    parser.add_argument("--model-seed", type=int, default=1)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--hold-back", type=float, default=0, metavar="GIB",
                        help="memory that is given back while parked, and some that is saved: what tags do")
    parser.add_argument("--max-tokens", type=int, default=768, help="prompt and answer of one request")
    options = parser.parse_args()
    begun, ending = time.monotonic(), []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: ending.append(True))

    session = gms.Session()
    if options.hold_back:
        session.tags({"weights": gms.KEEP, "kv": gms.SWAP, "graphs": gms.KEEP, "scratch": gms.RELEASE,
                      "state": gms.SAVE})
    model = importlib.import_module(options.model).Model(options)
    member = session.join(gms.Identity(model.name, model.dtype, model.layout, "blake2b-128", "engine.py", "1", HASH_SEED,
                                       options.block_tokens, int(os.environ["GMS_WORLD_SIZE"])))
    if member.world_size != 1:
        sys.exit("engine.py has one rank so far: let the deployment have ranks = 1")
    log = Log(options.log_dir, member)
    log("join")
    weights, kv = attach(options, model, session)
    session.busy(60000)
    model.warm_up()
    held = hold_back(options, session) if options.hold_back else None
    captures = model.graph_captures
    session.park()
    log("parked")
    print(f"engine {member.engine_id} parked after {time.monotonic() - begun:.1f} s", flush=True)

    epoch = None
    while epoch is None and not ending:
        epoch = session.wait_promotion(500)
    if epoch is None:
        session.close()
        return
    calls = session.driver_calls
    log(f"promoted epoch={epoch}")
    adoption = session.adopt()
    log(f"adopted count={adoption.adopted}")
    session.wake()
    for report in session.tag_reports():
        log(f"wake tag={report.name} bytes={report.bytes} ns={report.wake_ns}")
    log("woken")
    if held is not None and not held():
        sys.exit("what was saved while parked is not what it was")
    slots = Slots(kv, options.slots, log)
    states = [kv.state(slot) for slot in range(options.slots)]
    slots.quarantined = sum(state not in (0, 2) for state in states)
    slots.adopt(list(kv.sealed()), {slot for slot, state in enumerate(states) if state == 0})
    scheduler = Scheduler(model, session, slots, log)
    server = Server(options, session, member, epoch, scheduler, slots, adoption.adopted)
    session.serve(options.listen)
    log(f"serving epoch={epoch}")
    print(f"serving {options.listen}\ndriver calls of the promotion: {session.driver_calls - calls}; graphs captured before "
          f"it: {captures}", flush=True)
    try:
        server.run(ending)
    except gms.GmsError as problem:
        sys.exit(str(problem))
    except RuntimeError as problem:  # PyTorch's word for a device that is lost
        if "CUDA" in str(problem):
            session.report_sticky_error(1, str(problem).splitlines()[0])
            os._exit(70)
        raise
    print(f"graphs captured after the promotion: {model.graph_captures - captures}", flush=True)
    log("end")
    session.close()


if __name__ == "__main__":
    main()
