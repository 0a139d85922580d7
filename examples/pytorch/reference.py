# SPDX-License-Identifier: Apache-2.0
"""kernels.py in plain PyTorch: for the CPU, and to compare with."""
import torch


class Kernels:
    def __init__(self, heads: int, kv_heads: int, head: int, block_tokens: int, epsilon: float) -> None:
        self.heads, self.kv_heads, self.head = heads, kv_heads, head
        self.block_tokens, self.epsilon = block_tokens, epsilon

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype) * weight

    def add_norm(self, x, parts, weight, out) -> None:
        if parts is not None:
            total = parts[0].float()
            for part in parts[1:]:
                total = total + part.float()
            x.copy_(x.float() + total)
        out.copy_(self._norm(x, weight))

    def rope_store(self, rows: int, qkv, q_norm, k_norm, cosines, sines, control, q_out, kv, layer: int) -> None:
        half = self.head // 2
        for row in range(rows):
            position = int(control[row, 1])
            if position < 0:
                continue
            everything = qkv[row].view(-1, self.head)
            q, k, v = everything.split([self.heads, self.kv_heads, self.kv_heads])
            cosine, sine = cosines[position], sines[position]
            turned = []
            for part, weight in ((q, q_norm), (k, k_norm)):
                wide = self._norm(part, weight).float()
                low, high = wide[:, :half], wide[:, half:]
                turned.append(torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1).to(qkv.dtype))
            q_out[row].view(self.heads, self.head).copy_(turned[0])
            slot, place = int(control[row, 2 + position // self.block_tokens]), position % self.block_tokens
            kv[slot, layer, 0, place], kv[slot, layer, 1, place] = turned[1], v

    def attend(self, rows: int, q, control, kv, out, layer: int) -> None:
        for row in range(rows):
            count = int(control[row, 1]) + 1
            if count == 0:
                out[row] = 0
                continue
            slots = control[row, 2:2 + -(-count // self.block_tokens)].long()
            keys, values = kv[slots, layer].transpose(0, 1).reshape(2, -1, self.kv_heads, self.head)[:, :count].float()
            query = q[row].view(self.kv_heads, -1, self.head).float() * self.head**-0.5
            share = torch.einsum("kgd,tkd->kgt", query, keys).softmax(-1)
            out[row] = torch.einsum("kgt,tkd->kgd", share, values).reshape(-1).to(out.dtype)

    def silu_mul(self, both, out) -> None:
        gate, up = both.chunk(2, -1)
        out.copy_(torch.nn.functional.silu(gate.float()).to(up.dtype) * up)
