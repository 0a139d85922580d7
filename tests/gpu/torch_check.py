#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The decoder of examples/pytorch by itself: its kernels against plain PyTorch, its numbers against transformers', exactness,
and what a poisoned page does.

    python3 torch_check.py [--shape 0.6b] [--device cuda] [--trials 200]

Exit: 0 all good, 1 something is not, 77 there is no GPU (or no PyTorch).
"""
import argparse
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "pytorch"))
try:
    import torch
except ImportError:
    print("skipped: python3 has no torch")
    sys.exit(77)
import private
import qwen3
import reference
from ranks import Ranks
from scheduler import NO_BLOCK, Request, Scheduler, Slots, block_hash

POISON_LEAST = 0.95


class Client:
    """Takes what a client is told."""

    def __init__(self) -> None:
        self.tokens: dict[str, list] = {}
        self.left = 0

    def say(self, line: dict) -> None:
        if "token" in line:
            self.tokens.setdefault(line["id"], []).append(line["token"])
        self.left -= "done" in line


class Quiet:
    def __call__(self, text: str) -> None:
        pass

    @staticmethod
    def word(text: str) -> str:
        return text


class Engine:
    """Model, slots and scheduler without a server."""

    def __init__(self, options) -> None:
        self.options, self.session = options, private.Session(options.device)
        self.model = qwen3.Model(options, Ranks(0, 1, ""))
        places, offset = {}, 0
        for name, length in self.model.weight_sizes().items():
            places[name] = (offset, length)
            offset += -(-length // 256) * 256
        weights = self.session.weights("weights", offset)
        self.kv = self.session.kv("kv", options.slots, self.model.block_bytes)
        self.model.write_weights(weights, places)
        self.model.bind(weights, places, self.kv, options.slots, self.session)
        self.weights = {name: weights.tensor(places[name][0], shape, torch.bfloat16)
                        for name, shape in self.model._shapes().items()}
        self.model.warm_up()
        self.fresh()

    def fresh(self) -> None:
        """An empty prefix cache."""
        self.slots = Slots()
        self.slots.free.extend(range(self.options.slots))
        self.scheduler = Scheduler(self.model.rows, self.options.block_tokens, self.run, self.slots, Quiet())

    def run(self, plan: dict, meanwhile):
        if not plan["rows"]:
            return None
        self.model.submit(plan["rows"])
        meanwhile()
        return self.model.finish(lambda: None)

    def answer(self, requests: list) -> dict:
        """requests: (id, prompt tokens, number of tokens, temperature, seed)"""
        client = Client()
        client.left = len(requests)
        for key, prompt, count, temperature, seed in requests:
            self.scheduler.submit(Request(client, {"id": key, "temperature": temperature, "seed": seed}, list(prompt), 0,
                                          len(prompt) + count))
        while client.left > 0:
            self.scheduler.step()
        return client.tokens


def prompts(seed: int, count: int, least: int, most: int) -> list:
    source = random.Random(seed)
    return [[source.randrange(256) for _ in range(source.randrange(least, most))] for _ in range(count)]


def check_kernels(device: str) -> bool:
    """Triton's and plain PyTorch's: equal but for the order of additions."""
    import kernels
    torch.manual_seed(3)
    heads, kv_heads, head, block, rows, slots = 4, 2, 128, 16, 8, 40
    ours, plain = (module.Kernels(heads, kv_heads, head, block, 1e-6) for module in (kernels, reference))

    def noise(*shape):
        return torch.randn(shape, device=device).to(torch.bfloat16)

    control = torch.zeros((rows, 2 + 8), dtype=torch.int32)
    for i, position in enumerate((0, 5, 17, 100, -1, 127, 64, 63)):
        control[i, 1], control[i, 2:] = position, torch.randperm(slots)[:8]
    control = control.to(device)
    pages = torch.randperm(slots)[:8 * 4].view(4, 8)  # rows must not write to one page
    for i in range(4):
        control[i, 2:] = pages[i]
    angles = torch.arange(8 * block)[:, None] * (10000.0**(-torch.arange(0, head, 2) / head))[None]
    cosines, sines = angles.cos().to(device), angles.sin().to(device)
    x, parts, weight, qkv = noise(rows, 256), noise(3, rows, 256), noise(256), noise(rows, (heads + 2 * kv_heads) * head)
    q_norm, k_norm, kv, q, both = noise(head), noise(head), noise(slots, 2, 2, block, kv_heads, head), noise(
        rows, heads * head), noise(rows, 2 * 384)
    results = []
    for k in (ours, plain):
        total, normal, query, pages = x.clone(), torch.zeros_like(x), torch.zeros_like(q), kv.clone()
        mixed, gated = torch.ones_like(q), torch.zeros((rows, 384), dtype=torch.bfloat16, device=device)
        k.add_norm(total, parts, weight, normal)
        k.rope_store(4, qkv, q_norm, k_norm, cosines, sines, control, query, pages, 1)
        k.attend(rows, q, control, kv, mixed, 1)
        k.silu_mul(both, gated)
        results.append({"sum": total, "norm": normal, "query": query, "pages": pages, "attention": mixed, "gate": gated})
    good = True
    for name, mine in results[0].items():
        theirs = results[1][name].float()
        off = ((mine.float() - theirs).abs() / (theirs.abs() + 1)).max().item()
        good &= off < 0.02
        print(f"  {name}: greatest relative difference {off:.4f}")
    return good


def check_transformers(engine: Engine) -> bool:
    """The same weights in transformers' Qwen3ForCausalLM: the same numbers, as far as bf16 goes."""
    try:
        from transformers import Qwen3Config, Qwen3ForCausalLM
    except ImportError:
        print("  skipped: python3 has no transformers")
        return True
    m = engine.model
    config = Qwen3Config(vocab_size=m.words, hidden_size=m.width, intermediate_size=m.mlp, num_hidden_layers=m.layers,
                         num_attention_heads=m.heads, num_key_value_heads=m.kv_heads, head_dim=m.head, rms_norm_eps=m.epsilon,
                         tie_word_embeddings=True, rope_theta=m.base, max_position_embeddings=4096)
    if hasattr(config, "rope_parameters"):
        config.rope_parameters = {"rope_type": "default", "rope_theta": m.base}
    with torch.device("meta"):
        theirs = Qwen3ForCausalLM(config)
    theirs.to_empty(device=engine.options.device)
    theirs = theirs.to(torch.bfloat16).eval()
    state = {**engine.weights, "lm_head.weight": engine.weights["model.embed_tokens.weight"]}
    theirs.load_state_dict(state)
    rope = theirs.model.rotary_emb
    rope.inv_freq = (m.base**(-torch.arange(0, m.head, 2, device=engine.options.device, dtype=torch.float32) / m.head))
    prompt = prompts(5, 1, 100, 101)[0]
    blocks = list(range(-(-len(prompt) // m.block_tokens)))
    ours = []
    for start in range(0, len(prompt), m.rows):
        rows = [(prompt[i], i, blocks) for i in range(start, min(start + m.rows, len(prompt)))]
        m.submit(rows)
        ours.append(m.finish(lambda: None)[:len(rows)].clone())
    ours = torch.cat(ours)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([prompt], device=engine.options.device)).logits[0, :, :m.vocabulary].float().cpu()
    off = (ours - wanted).abs().mean().item() / wanted.abs().mean().item()
    alike = (ours.argmax(-1) == wanted.argmax(-1)).float().mean().item()
    print(f"  {len(prompt)} tokens: mean difference of logits {off:.4f} of their size, greatest logit the same for "
          f"{100 * alike:.0f} %")
    return off < 0.1 and alike > 0.8


def check_exactness(engine: Engine) -> bool:
    """Equal bit for bit: in each graph, at each place among the rows, with and without company, one by one and in chunks."""
    m = engine.model
    prompt, other = prompts(6, 2, 90, 91)
    blocks, others = list(range(6)), list(range(10, 16))

    def feed(rows: list):
        m.submit(rows)
        return m.finish(lambda: None)[:len(rows)].clone()

    def row(i: int):
        return prompt[i], i, blocks

    def company(i: int):
        return other[i], i, others

    wanted = torch.cat([feed([row(i)]) for i in range(90)])
    pages = m._kv[:6].clone()
    good, ways = True, 0
    for i in range(90):  # what the company reads
        feed([company(i)])
    for size in (1, 2, 3, 4, 5, 15, 16, 17, 33, 64):
        m._kv[:6].zero_()
        got = torch.cat([feed([row(i) for i in range(start, min(start + size, 90))]) for start in range(0, 90, size)])
        good &= torch.equal(got, wanted) and torch.equal(m._kv[:6], pages)
        ways += 1
    for place in (0, 1, 7, 13, 31, 62):
        got = torch.cat([feed([company(89)] * place + [row(i)] + [company(50)] * (i % (63 - place)))[place:place + 1]
                         for i in range(90)])
        good &= torch.equal(got, wanted) and torch.equal(m._kv[:6], pages)
        ways += 1
    print(f"  90 tokens, {ways} ways to compute them: {'logits and KV equal bit for bit' if good else 'DIFFERENT'}; "
          f"{m.vocabulary * 90} logits each")
    return good


def check_poison(engine: Engine, trials: int, seed: int) -> bool:
    """A page of a cached prompt becomes noise of the same size; the answer must be another one."""
    source, differ, done = random.Random(seed), 0, 0
    while done < trials:
        engine.fresh()
        batch = prompts(source.randrange(1 << 30), min(8, trials - done), 64, 320)
        asked = [(str(i), prompt, 32, 0.9, 100 + i) for i, prompt in enumerate(batch)]
        engine.answer([(key, prompt, 1, 0.9, 0) for key, prompt, _, _, _ in asked])
        undisturbed = engine.answer(asked)
        if engine.answer(asked) != undisturbed:
            print("  two undisturbed answers differ")
            return False
        for prompt in batch:
            page = engine.model._kv[source.choice(chain_of(engine, prompt))]
            page.copy_((torch.randn(page.shape, device=page.device) * page.float().std()).to(page.dtype))
        poisoned = engine.answer(asked)
        differ += sum(poisoned[key] != undisturbed[key] for key in undisturbed)
        done += len(batch)
    print(f"  {differ} of {done} answers differ ({100 * differ / done:.1f} %; at least {100 * POISON_LEAST:.0f} % must)")
    return differ >= POISON_LEAST * done


def chain_of(engine: Engine, prompt: list) -> list:
    """The slots of its cached blocks."""
    slots, parent, size = [], NO_BLOCK, engine.options.block_tokens
    for i in range((len(prompt) - 1) // size):
        parent = block_hash(parent, prompt[i * size:(i + 1) * size])
        slots.append(engine.slots.cached[parent])
    return slots


def measure_steps(engine: Engine) -> None:
    m = engine.model
    for rows in m.sizes:
        plan = [(1, 400, list(range(26)))] + [(1, 400, list(range(26 * (1 + i % 15), 26 * (2 + i % 15)))) for i in range(rows - 1)]
        times = []
        for _ in range(50):
            begun = time.perf_counter()
            m.submit(plan)
            m.finish(lambda: None)
            times.append(1e3 * (time.perf_counter() - begun))
        times.sort()
        print(f"  step of {rows} rows at position 400: median {times[25]:.2f} ms, greatest {times[-1]:.2f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU")
        return 77
    options.weights, options.model_seed, options.graphs, options.sums = None, 1, "4,16,64", "auto"
    options.slots, options.block_tokens, options.max_tokens = 512, 16, 768
    engine = Engine(options)
    failed = []
    for graph in engine.model.graphs:
        print(f"graph of {graph.rows} rows: {graph.ms:.0f} ms, {graph.bytes / 2**20:.1f} MiB of device memory")
    checks = [("exactness", lambda: check_exactness(engine)), ("transformers", lambda: check_transformers(engine)),
              ("poison", lambda: check_poison(engine, options.trials, options.seed))]
    if options.device == "cuda":
        checks.insert(0, ("kernels", lambda: check_kernels(options.device)))
    for name, check in checks:
        print(f"{name}:", flush=True)
        if not check():
            failed.append(name)
    if options.device == "cuda":
        print("steps:")
        measure_steps(engine)
    print(f"FAILED: {', '.join(failed)}" if failed else "all good")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
