# SPDX-License-Identifier: Apache-2.0
"""A decoder of the Qwen3 family in PyTorch, one CUDA graph for everything.

Weights have the names and shapes of transformers' Qwen3ForCausalLM (0.6B by default) and are seeded random numbers, or come
from a directory with *.safetensors of such a model. A step always has the same number of rows; a row is one token of one
sequence. Prefill feeds as many consecutive tokens of a prompt as there are rows, decoding feeds one of each sequence: the
same graph, the same kernels on the same shapes. So a token's numbers do not depend on whether it was decoded or prefilled,
nor on who else is in the batch: what is replayed after a failover is equal bit for bit to what was computed before it, as
long as each row of a matrix product depends on that row alone. Rows that nobody needs repeat the first.
"""
import glob
import os
import time

import torch


class Model:
    dtype, layout, vocabulary, rows = "bf16", "slot-layer-kv-token-head", 256, 16

    def __init__(self, options) -> None:
        self.layers, self.width, self.heads, self.kv_heads, self.head, self.mlp = 28, 1024, 16, 8, 128, 3072
        self.words, self.base, self.epsilon = 151936, 1000000.0, 1e-6
        self.block_tokens, self.blocks = options.block_tokens, options.max_tokens // options.block_tokens
        self.path, self.seed = options.weights, options.model_seed
        self.name = f"qwen3-0.6b@{os.path.basename(self.path) if self.path else f'random-{self.seed}'}"
        self.block_bytes = self.layers * 2 * self.block_tokens * self.kv_heads * self.head * 2
        self.graph_captures, self.capture_ms, self.capture_bytes = 0, 0.0, 0
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.manual_seed(self.seed)

    def _shapes(self) -> dict:
        shapes = {"model.embed_tokens.weight": (self.words, self.width), "model.norm.weight": (self.width,)}
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

    def weight_sizes(self) -> dict:
        return {name: 2 * torch.Size(shape).numel() for name, shape in self._shapes().items()}

    def write_weights(self, pool, places: dict) -> None:
        """The first engine's part: random numbers, or a checkpoint, straight into the pool."""
        generator = torch.Generator(device="cuda").manual_seed(self.seed)
        for name, shape in self._shapes().items():
            target = pool.tensor(places[name][0], shape, torch.bfloat16)
            if len(shape) == 1:
                target.fill_(1.0)
            else:
                # Attention that looks sharply, so that every page of KV matters to what follows.
                scale = 2.2 if "q_proj" in name or "k_proj" in name else 1.0
                target.copy_(torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).mul_(
                    scale / shape[-1]**0.5 if "embed" not in name else 1.0))
        if self.path:
            from safetensors import safe_open
            for file in sorted(glob.glob(os.path.join(self.path, "*.safetensors"))):
                with safe_open(file, framework="pt", device="cuda") as tensors:
                    for name in tensors.keys():
                        if name in places:
                            pool.tensor(places[name][0], self._shapes()[name], torch.bfloat16).copy_(
                                tensors.get_tensor(name))
        torch.cuda.synchronize()

    def bind(self, weights, places: dict, kv, slots: int) -> None:
        self._w = {name: weights.tensor(places[name][0], shape, torch.bfloat16)
                   for name, shape in self._shapes().items()}
        self._kv = kv.tensor(0, (slots, self.layers, 2, self.block_tokens, self.kv_heads, self.head), torch.bfloat16)
        rows = self.rows
        self._tokens = torch.zeros(rows, dtype=torch.long, device="cuda")
        self._positions = torch.zeros(rows, dtype=torch.long, device="cuda")
        self._table = torch.zeros((rows, self.blocks), dtype=torch.long, device="cuda")
        self._out = torch.zeros((rows, self.vocabulary), dtype=torch.float32, device="cuda")
        self._host_in = torch.zeros((rows, 2 + self.blocks), dtype=torch.long, pin_memory=True)
        self._device_in = torch.zeros((rows, 2 + self.blocks), dtype=torch.long, device="cuda")
        self._host_out = torch.zeros((rows, self.vocabulary), dtype=torch.float32, pin_memory=True)
        angles = torch.arange(self.blocks * self.block_tokens, device="cuda", dtype=torch.float32)[:, None] * (
            self.base**(-torch.arange(0, self.head, 2, device="cuda", dtype=torch.float32) / self.head))[None]
        self._cos, self._sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        self._all = torch.arange(self.blocks * self.block_tokens, device="cuda")
        self._stream = torch.cuda.Stream()

    def _norm(self, x, weight):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype) * weight

    def _turn(self, x, cos, sin):
        wide, half = x.float(), self.head // 2
        turned = torch.cat([-wide[..., half:], wide[..., :half]], -1)
        return (wide * cos + turned * sin).to(x.dtype)

    def _forward(self):
        w, rows = self._w, self.rows
        self._tokens.copy_(self._device_in[:, 0])
        self._positions.copy_(self._device_in[:, 1])
        self._table.copy_(self._device_in[:, 2:])
        at, table = self._positions, self._table
        x = w["model.embed_tokens.weight"][self._tokens]
        cos, sin = self._cos[at][:, None], self._sin[at][:, None]
        slot = table.gather(1, (at // self.block_tokens)[:, None])[:, 0]
        place = at % self.block_tokens
        seen = (self._all[None] <= at[:, None])[:, None]  # row, head, position
        group = self.heads // self.kv_heads
        for i in range(self.layers):
            p = f"model.layers.{i}."
            h = self._norm(x, w[p + "input_layernorm.weight"])
            q = (h @ w[p + "self_attn.q_proj.weight"].T).view(rows, self.heads, self.head)
            k = (h @ w[p + "self_attn.k_proj.weight"].T).view(rows, self.kv_heads, self.head)
            v = (h @ w[p + "self_attn.v_proj.weight"].T).view(rows, self.kv_heads, self.head)
            q = self._turn(self._norm(q, w[p + "self_attn.q_norm.weight"]), cos, sin)
            k = self._turn(self._norm(k, w[p + "self_attn.k_norm.weight"]), cos, sin)
            self._kv[slot, i, 0, place] = k
            self._kv[slot, i, 1, place] = v
            keys = self._kv[table, i, 0].view(rows, -1, self.kv_heads, self.head)
            values = self._kv[table, i, 1].view(rows, -1, self.kv_heads, self.head)
            q = q.view(rows, self.kv_heads, group, self.head).float()
            scores = torch.einsum("rkgd,rtkd->rkgt", q, keys.float()) * self.head**-0.5
            scores = scores.view(rows, self.heads, -1).masked_fill(~seen, float("-inf")).softmax(-1)
            mixed = torch.einsum("rkgt,rtkd->rkgd", scores.view(rows, self.kv_heads, group, -1), values.float())
            x = x + mixed.reshape(rows, -1).to(x.dtype) @ w[p + "self_attn.o_proj.weight"].T
            h = self._norm(x, w[p + "post_attention_layernorm.weight"])
            gate = torch.nn.functional.silu(h @ w[p + "mlp.gate_proj.weight"].T)
            x = x + (gate * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
        x = self._norm(x, w["model.norm.weight"])
        self._out.copy_((x @ w["model.embed_tokens.weight"][:self.vocabulary].T).float())

    def warm_up(self) -> None:
        """On scratch KV: the first steps, then the graph. What it reads and writes are addresses, which stay."""
        before, since = torch.cuda.mem_get_info()[0], time.monotonic()
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for _ in range(2):
                self._forward()
            self._stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._forward()
            self._graph.replay()
            self._stream.synchronize()
        self.graph_captures += 1
        self.capture_ms, self.capture_bytes = 1e3 * (time.monotonic() - since), before - torch.cuda.mem_get_info()[0]

    def step(self, rows) -> list:
        """rows: (token, position, slots of the sequence), at most self.rows. One list of logits a row."""
        values = [[token, position] + list(slots) + [slots[0]] * (self.blocks - len(slots))
                  for token, position, slots in rows]
        values += [values[0]] * (self.rows - len(values))
        self._host_in.copy_(torch.tensor(values, dtype=torch.long))
        with torch.cuda.stream(self._stream):
            self._device_in.copy_(self._host_in, non_blocking=True)
            self._graph.replay()
            self._host_out.copy_(self._out, non_blocking=True)
        self._stream.synchronize()
        return self._host_out[:len(rows)].tolist()
