# SPDX-License-Identifier: Apache-2.0
"""A decoder of the Qwen3 family in PyTorch: any number of ranks, CUDA graphs for several numbers of rows.

Weights have the names and shapes of transformers' Qwen3ForCausalLM (0.6B by default) and are seeded random numbers, or come
from a directory with *.safetensors of such a model. A row of a step is one token of one sequence. Prefill feeds consecutive
tokens of a prompt, decoding one of each sequence: the same kernels on the same shapes. Every matrix product has ROWS rows,
however many are used, and what lies between computes each row by itself (kernels.py). So a token's numbers do not depend on
whether it was decoded or prefilled, in which graph, nor on who else is in the batch, as long as each row of a matrix product
depends on that row alone: what is replayed after a failover is equal bit for bit to what was computed before it.

A rank has its share of the heads and of the MLP; its parts of the rows are added up twice a layer (sums.py).
"""
from __future__ import annotations

import glob
import importlib
import os
import time
from typing import Callable, Optional

import torch

import sums
from ranks import Ranks

ROWS = 64
SHAPES = {  # layers, width, heads, kv heads, head, mlp, words
    "0.6b": (28, 1024, 16, 8, 128, 3072, 151936),
    "tiny": (2, 256, 4, 2, 64, 512, 1024),
}


class Graph:
    """One captured graph, and what it took."""

    def __init__(self, rows: int, graph, ms: float, size: int) -> None:
        self.rows, self.graph, self.ms, self.bytes = rows, graph, ms, size


class Model:
    dtype, vocabulary, rows = "bf16", 256, ROWS

    def __init__(self, options, ranks: Ranks) -> None:
        self.layers, self.width, heads, kv_heads, self.head, mlp, self.words = SHAPES[options.shape]
        self.base, self.epsilon, self._ranks = 1000000.0, 1e-6, ranks
        if kv_heads % ranks.size or mlp % ranks.size:
            raise SystemExit(f"error: {ranks.size} ranks: {kv_heads} KV heads cannot be divided among them")
        self.heads, self.kv_heads, self.mlp = heads // ranks.size, kv_heads // ranks.size, mlp // ranks.size
        self._shares = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "gate_proj": 0, "up_proj": 0, "o_proj": 1, "down_proj": 1}
        self.block_tokens, self.blocks = options.block_tokens, options.max_tokens // options.block_tokens
        self.path, self.seed, self.device = options.weights, options.model_seed, options.device
        self._sum_kind = options.sums
        self.layout = f"slot-layer-kv-token-head tp={ranks.size}"
        self.name = f"qwen3-{options.shape}@{os.path.basename(self.path) if self.path else f'random-{self.seed}'}"
        self.block_bytes = self.layers * 2 * self.block_tokens * self.kv_heads * self.head * 2
        position = self.kv_heads * self.head * 2
        self.tail_layout = (2 * self.layers, position, self.block_tokens * position)
        self.sizes = sorted({min(int(size), ROWS) for size in options.graphs.split(",")} | {ROWS})
        self.graphs: list[Graph] = []
        self._kernels = importlib.import_module("reference" if self.device == "cpu" else "kernels").Kernels(
            self.heads, self.kv_heads, self.head, self.block_tokens, self.epsilon)

    @property
    def graph_captures(self) -> int:
        return len(self.graphs)

    # ------------------------------------------------------------------------------------------------ weights ----

    def _shapes(self) -> dict[str, tuple]:
        """Of this rank. Queries, keys and values lie one after the other, so do gate and up: each is one product."""
        shapes: dict[str, tuple] = {"model.embed_tokens.weight": (self.words, self.width), "model.norm.weight": (self.width,)}
        for i in range(self.layers):
            layer = f"model.layers.{i}."
            shapes.update({
                layer + "input_layernorm.weight": (self.width,),
                layer + "post_attention_layernorm.weight": (self.width,),
                layer + "self_attn.q_proj.weight": (self.heads * self.head, self.width),
                layer + "self_attn.k_proj.weight": (self.kv_heads * self.head, self.width),
                layer + "self_attn.v_proj.weight": (self.kv_heads * self.head, self.width),
                layer + "self_attn.o_proj.weight": (self.width, self.heads * self.head),
                layer + "self_attn.q_norm.weight": (self.head,),
                layer + "self_attn.k_norm.weight": (self.head,),
                layer + "mlp.gate_proj.weight": (self.mlp, self.width),
                layer + "mlp.up_proj.weight": (self.mlp, self.width),
                layer + "mlp.down_proj.weight": (self.width, self.mlp),
            })
        return shapes

    def weight_sizes(self) -> dict[str, int]:
        return {name: 2 * torch.Size(shape).numel() for name, shape in self._shapes().items()}

    def _share(self, name: str) -> Optional[int]:
        """Along which dimension of the whole tensor this rank has a part; None: it has all of it."""
        return self._shares.get(name.split(".")[-2])

    def _take(self, target: torch.Tensor, name: str, whole: torch.Tensor) -> None:
        dimension = self._share(name)
        if dimension is not None:
            whole = whole.chunk(self._ranks.size, dimension)[self._ranks.rank]
        if whole.shape != target.shape:
            raise SystemExit(f"error: {name} has shape {tuple(whole.shape)}, wanted is {tuple(target.shape)}")
        target.copy_(whole)

    def write_weights(self, pool, places: dict) -> None:
        """The first engine's part: random numbers, or a checkpoint, straight into the pool."""
        generator = torch.Generator(device=self.device).manual_seed(self.seed)
        for name, shape in self._shapes().items():
            target = pool.tensor(places[name][0], shape, torch.bfloat16)
            if len(shape) == 1:
                target.fill_(1.0)
                continue
            whole = list(shape)
            dimension = self._share(name)
            if dimension is not None:
                whole[dimension] *= self._ranks.size
            # Attention that looks sharply, and embeddings that do not drown what it finds: every page of KV matters.
            scale = 4.0 if "embed" in name else 2.2 if "q_proj" in name or "k_proj" in name else 1.0
            self._take(target, name, torch.randn(whole, generator=generator, device=self.device, dtype=torch.float32).mul_(
                scale / whole[-1]**0.5))
        if self.path:
            from safetensors import safe_open
            for file in sorted(glob.glob(os.path.join(self.path, "*.safetensors"))):
                with safe_open(file, framework="pt", device=self.device) as tensors:
                    for name in tensors.keys():
                        if name in places:
                            self._take(pool.tensor(places[name][0], self._shapes()[name], torch.bfloat16), name,
                                       tensors.get_tensor(name))
        if self.device != "cpu":
            torch.cuda.synchronize()

    def bind(self, weights, places: dict, kv, slots: int, session) -> None:
        """From here on the model reads `weights` and has its KV in `kv`; addresses stay."""
        shapes = self._shapes()

        def tensor(*names: str) -> torch.Tensor:
            start, first = places[names[0]][0], shapes[names[0]]
            count = sum(shapes[name][0] for name in names)
            if places[names[-1]][0] + 2 * torch.Size(shapes[names[-1]]).numel() != start + 2 * count * first[-1]:
                raise SystemExit(f"error: {', '.join(names)} do not lie one after the other")
            return weights.tensor(start, (count, *first[1:]), torch.bfloat16)

        self._embedding = weights.tensor(places["model.embed_tokens.weight"][0], shapes["model.embed_tokens.weight"],
                                         torch.bfloat16)
        self._last_norm = weights.tensor(places["model.norm.weight"][0], (self.width,), torch.bfloat16)
        self._layers = []
        for i in range(self.layers):
            p = f"model.layers.{i}."
            vector = {name: weights.tensor(places[p + name][0], shapes[p + name], torch.bfloat16) for name in (
                "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_norm.weight",
                "self_attn.k_norm.weight")}
            self._layers.append((
                vector["input_layernorm.weight"],
                tensor(*(f"{p}self_attn.{which}_proj.weight" for which in "qkv")).T,
                vector["self_attn.q_norm.weight"], vector["self_attn.k_norm.weight"],
                weights.tensor(places[p + "self_attn.o_proj.weight"][0], shapes[p + "self_attn.o_proj.weight"],
                               torch.bfloat16).T,
                vector["post_attention_layernorm.weight"],
                tensor(p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight").T,
                weights.tensor(places[p + "mlp.down_proj.weight"][0], shapes[p + "mlp.down_proj.weight"], torch.bfloat16).T,
            ))
        self._kv = kv.tensor(0, (slots, self.layers, 2, self.block_tokens, self.kv_heads, self.head), torch.bfloat16)
        on = {"device": self.device}
        angles = torch.arange(self.blocks * self.block_tokens, dtype=torch.float32, **on)[:, None] * (
            self.base**(-torch.arange(0, self.head, 2, dtype=torch.float32, **on) / self.head))[None]
        self._cos, self._sin = angles.cos(), angles.sin()

        def rows(width: int, dtype=torch.bfloat16) -> torch.Tensor:
            return torch.zeros((ROWS, width), dtype=dtype, **on)

        columns, pinned = 2 + self.blocks, self.device != "cpu"
        self._host_control = torch.zeros((ROWS, columns), dtype=torch.int32, pin_memory=pinned)
        self._host_out = torch.zeros((ROWS, self.vocabulary), dtype=torch.float32, pin_memory=pinned)
        self._write = self._host_control.numpy()
        self._control, self._tokens = rows(columns, torch.int32), torch.zeros(ROWS, dtype=torch.int32, **on)
        self._x, self._h, self._out = rows(self.width), rows(self.width), rows(self.vocabulary)
        self._qkv, self._q = rows((self.heads + 2 * self.kv_heads) * self.head), rows(self.heads * self.head)
        self._mixed, self._both, self._gated = rows(self.heads * self.head), rows(2 * self.mlp), rows(self.mlp)
        self._sums = sums.make(self._sum_kind, ROWS, self.width, 2 * self.layers, self.device, self._ranks, session)
        self._stream = torch.cuda.Stream() if pinned else None
        self.copier = self._copier_of(kv) if pinned else None

    def _copier_of(self, kv) -> Callable:
        """Copies inside the KV pool, on the stream that will use it."""
        copy = kv.torch_copier()

        def copier(*what) -> None:
            with torch.cuda.stream(self._stream):
                copy(*what)

        return copier

    # --------------------------------------------------------------------------------------------------- steps ---

    @property
    def stream(self) -> int:
        """The stream that writes KV; 0 on the CPU."""
        return self._stream.cuda_stream if self._stream is not None else 0

    def _forward(self, rows: int) -> None:
        """`rows` of ROWS may be used; the others hold nothing, and are computed where that costs nothing."""
        k, stream = self._kernels, self.stream
        self._control[:rows].copy_(self._host_control[:rows], non_blocking=True)
        self._tokens[:rows].copy_(self._control[:rows, 0])
        torch.index_select(self._embedding, 0, self._tokens, out=self._x)
        parts = None
        for i, (norm_1, qkv, q_norm, k_norm, o, norm_2, both, down) in enumerate(self._layers):
            k.add_norm(self._x, parts, norm_1, self._h)
            torch.mm(self._h, qkv, out=self._qkv)
            k.rope_store(rows, self._qkv, q_norm, k_norm, self._cos, self._sin, self._control, self._q, self._kv, i)
            k.attend(rows, self._q, self._control, self._kv, self._mixed, i)
            torch.mm(self._mixed, o, out=self._sums.part(2 * i))
            self._sums.exchange(2 * i, stream)
            k.add_norm(self._x, self._sums.parts(2 * i), norm_2, self._h)
            torch.mm(self._h, both, out=self._both)
            k.silu_mul(self._both, self._gated)
            torch.mm(self._gated, down, out=self._sums.part(2 * i + 1))
            self._sums.exchange(2 * i + 1, stream)
            parts = self._sums.parts(2 * i + 1)
        k.add_norm(self._x, parts, self._last_norm, self._h)
        torch.mm(self._h, self._embedding[:self.vocabulary].T, out=self._out)
        self._host_out[:rows].copy_(self._out[:rows], non_blocking=True)

    def warm_up(self) -> None:
        """On scratch KV: the first steps, then the graphs. What they read and write are addresses, which stay."""
        self._host_control[:, 1] = -1
        if self.device == "cpu":
            return
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for rows in self.sizes:
                self._forward(rows)
            for count in range(1, self.block_tokens):  # whatever kernel PyTorch takes for it is loaded now
                self.copier(self.block_bytes, 0, self.tail_layout[2], count * self.tail_layout[1], self.tail_layout[0])
            self._settle()
            pool = None
            for rows in self.sizes:
                torch.cuda.empty_cache()  # a capture begins with it
                before, since = torch.cuda.mem_get_info()[0], time.monotonic()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=self._stream, pool=pool):
                    self._forward(rows)
                pool = graph.pool()
                graph.replay()
                self._settle()
                self.graphs.append(Graph(rows, graph, 1e3 * (time.monotonic() - since),
                                         before - torch.cuda.mem_get_info()[0]))
        self._done = torch.cuda.Event()

    def _settle(self) -> None:
        done = torch.cuda.Event()
        done.record(self._stream)
        while not done.query():
            self._ranks.check()

    def submit(self, rows: list) -> None:
        """rows: (token, position, slots of the sequence), at most ROWS. Returns when they are under way."""
        write, count = self._write, len(rows)
        for i, (token, position, slots) in enumerate(rows):
            row = write[i]
            row[0], row[1] = token, position
            row[2:2 + len(slots)] = slots
        self._used = next(size for size in self.sizes if size >= count)
        write[count:self._used, 1] = -1
        with torch.inference_mode():
            if self._stream is None:
                self._forward(self._used)
                return
            with torch.cuda.stream(self._stream):
                next(graph for graph in self.graphs if graph.rows == self._used).graph.replay()
                self._done.record(self._stream)

    def finish(self, check: Callable[[], None]) -> torch.Tensor:
        """Waits for the rows that were submitted, and has `check` called now and then; their logits."""
        if self._stream is not None:
            turn = 0
            while not self._done.query():
                turn += 1
                if turn % 256 == 0:
                    self._sums.wait()
                    check()
        return self._host_out

    def report(self) -> str:
        """Of the graphs, and how ranks are added up."""
        graphs = "; ".join(f"{g.rows} rows {g.bytes / 2**20:.1f} MiB {g.ms:.0f} ms" for g in self.graphs)
        return f"; sums: {self._sums.name}; graphs: {graphs or 'none'}{self._memory()}"

    def _memory(self) -> str:
        """What the driver says that this process has for itself, where NVML's Python module is there to be asked."""
        try:
            import pynvml
            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(self._x.device).uuid}")
            mine = [p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device) if p.pid == os.getpid()]
            return f"; device memory of this process: {mine[0] / 2**20:.0f} MiB" if mine and mine[0] else ""
        except Exception:  # a report, and nothing else, may lack it
            return ""

    def poison(self, slot: int) -> None:
        """For drills: numbers of the size that keys and values have."""
        generator = torch.Generator(device=self.device).manual_seed(slot)
        page = self._kv[slot]
        page.copy_(torch.randn(page.shape, generator=generator, device=self.device, dtype=torch.float32))

    def verify(self) -> int:
        """After waking, before serving, on all ranks: raises unless all ranks can be added up. Nanoseconds."""
        return self._sums.verify()

    def close(self) -> None:
        for graph in self.graphs:
            graph.graph.reset()  # NCCL frees nothing while a graph holds a collective
        self._sums.close()
