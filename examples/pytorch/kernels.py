# SPDX-License-Identifier: Apache-2.0
"""What lies between the matrix products of the decoder: each program computes one row, and reads nothing of another.

So what a row becomes cannot depend on how many rows there are, on its place among them or on who else is there. A row whose
position is negative is unused: it reads and writes no KV, and its attention is zero.
"""
import torch
import triton
import triton.language as tl


@triton.jit
def _add_norm(x, parts, weight, out, part_stride, epsilon, PARTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = tl.program_id(0) * WIDTH + column
    value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    if PARTS > 0:
        total = tl.load(parts + at, mask=inside, other=0).to(tl.float32)
        for i in tl.static_range(1, PARTS):
            total += tl.load(parts + i * part_stride + at, mask=inside, other=0).to(tl.float32)
        rounded = (value + total).to(tl.bfloat16)
        tl.store(x + at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / WIDTH + epsilon)
    normal = (value * scale).to(tl.bfloat16).to(tl.float32) * tl.load(weight + column, mask=inside, other=0).to(tl.float32)
    tl.store(out + at, normal.to(tl.bfloat16), mask=inside)


@triton.jit
def _rope_store(qkv, q_norm, k_norm, cosines, sines, control, q_out, kv, control_stride, slot_stride, layer_offset, value_offset,
                epsilon, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(control + row * control_stride + 1)
    used = position >= 0
    position = tl.maximum(position, 0)
    is_query, is_value = head < HEADS, head >= HEADS + KV_HEADS
    low = tl.arange(0, HALF)
    at = (row * (HEADS + 2 * KV_HEADS) + head) * (2 * HALF) + low
    raw_low, raw_high = tl.load(qkv + at), tl.load(qkv + at + HALF)
    wide_low, wide_high = raw_low.to(tl.float32), raw_high.to(tl.float32)
    scale = 1.0 / tl.sqrt((tl.sum(wide_low * wide_low, 0) + tl.sum(wide_high * wide_high, 0)) / (2 * HALF) + epsilon)
    weight_low = tl.where(is_query, tl.load(q_norm + low), tl.load(k_norm + low)).to(tl.float32)
    weight_high = tl.where(is_query, tl.load(q_norm + low + HALF), tl.load(k_norm + low + HALF)).to(tl.float32)
    normal_low = ((wide_low * scale).to(tl.bfloat16).to(tl.float32) * weight_low).to(tl.bfloat16).to(tl.float32)
    normal_high = ((wide_high * scale).to(tl.bfloat16).to(tl.float32) * weight_high).to(tl.bfloat16).to(tl.float32)
    cosine, sine = tl.load(cosines + position * HALF + low), tl.load(sines + position * HALF + low)
    turned_low = tl.where(is_value, raw_low, (normal_low * cosine - normal_high * sine).to(tl.bfloat16))
    turned_high = tl.where(is_value, raw_high, (normal_high * cosine + normal_low * sine).to(tl.bfloat16))
    query = q_out + (row * HEADS + head) * (2 * HALF) + low
    asks = used & is_query
    tl.store(query, turned_low, mask=asks)
    tl.store(query + HALF, turned_high, mask=asks)
    slot = tl.load(control + row * control_stride + 2 + position // BLOCK_TOKENS).to(tl.int64)
    kv_head = tl.maximum(tl.where(is_value, head - HEADS - KV_HEADS, head - HEADS), 0)
    page = kv + slot * slot_stride + layer_offset + tl.where(is_value, value_offset, 0)
    page += ((position % BLOCK_TOKENS) * KV_HEADS + kv_head) * (2 * HALF) + low
    keeps = used & (head >= HEADS)
    tl.store(page, turned_low, mask=keeps)
    tl.store(page + HALF, turned_high, mask=keeps)


@triton.jit
def _attend(q, control, kv, out, control_stride, slot_stride, layer_offset, value_offset, scale, GROUP: tl.constexpr,
            KV_HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK_TOKENS: tl.constexpr, CHUNK: tl.constexpr):
    row, kv_head = tl.program_id(0), tl.program_id(1)
    count = tl.load(control + row * control_stride + 1) + 1
    lane = tl.arange(0, HEAD)
    head = kv_head * GROUP + tl.arange(0, GROUP)
    at = (row * KV_HEADS * GROUP + head)[:, None] * HEAD + lane[None, :]
    query = tl.load(q + at).to(tl.float32) * scale
    greatest = tl.full((GROUP,), float("-inf"), tl.float32)
    weight = tl.zeros((GROUP,), tl.float32)
    mixed = tl.zeros((GROUP, HEAD), tl.float32)
    for start in range(0, count, CHUNK):
        token = start + tl.arange(0, CHUNK)
        seen = token < count
        slot = tl.load(control + row * control_stride + 2 + token // BLOCK_TOKENS, mask=seen, other=0).to(tl.int64)
        place = slot * slot_stride + layer_offset + ((token % BLOCK_TOKENS) * KV_HEADS + kv_head) * HEAD
        key = tl.load(kv + place[:, None] + lane[None, :], mask=seen[:, None], other=0).to(tl.float32)
        score = tl.sum(query[:, None, :] * key[None, :, :], 2)
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(greatest, tl.max(score, 1))
        shrink, share = tl.exp(greatest - higher), tl.exp(score - higher[:, None])
        value = tl.load(kv + value_offset + place[:, None] + lane[None, :], mask=seen[:, None], other=0).to(tl.float32)
        weight = weight * shrink + tl.sum(share, 1)
        mixed = mixed * shrink[:, None] + tl.sum(share[:, :, None] * value[None, :, :], 1)
        greatest = higher
    mixed = mixed / tl.where(weight > 0, weight, 1.0)[:, None]
    tl.store(out + at, mixed.to(tl.bfloat16))


@triton.jit
def _silu_mul(both, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(both + row * 2 * WIDTH + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(both + row * 2 * WIDTH + WIDTH + column, mask=inside, other=0).to(tl.float32)
    product = (gate / (1.0 + tl.exp(-gate))).to(tl.bfloat16).to(tl.float32) * up
    tl.store(out + row * WIDTH + column, product.to(tl.bfloat16), mask=inside)


class Kernels:
    """For one shape of a decoder. Tensors are contiguous; `control` is [rows, 2 + blocks]: token, position, slots."""

    def __init__(self, heads: int, kv_heads: int, head: int, block_tokens: int, epsilon: float) -> None:
        self.heads, self.kv_heads, self.head = heads, kv_heads, head
        self.block_tokens, self.epsilon = block_tokens, epsilon

    def add_norm(self, x: torch.Tensor, parts: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor) -> None:
        """x += the sum of parts, in their order; out = RMSNorm(x) * weight."""
        width = x.shape[1]
        _add_norm[(x.shape[0],)](x, x if parts is None else parts, weight, out, x.numel(), self.epsilon,
                                 0 if parts is None else parts.shape[0], width, triton.next_power_of_2(width))

    def _places(self, kv: torch.Tensor, layer: int) -> tuple[int, int, int]:
        """Numbers of elements: from slot to slot, to this layer's keys, from there to its values."""
        return kv.stride(0), layer * kv.stride(1), kv.stride(2)

    def rope_store(self, rows: int, qkv, q_norm, k_norm, cosines, sines, control, q_out, kv, layer: int) -> None:
        """Norms and turns queries and keys of the first rows; queries to q_out, keys and values to their pages."""
        _rope_store[(rows, self.heads + 2 * self.kv_heads)](
            qkv, q_norm, k_norm, cosines, sines, control, q_out, kv, control.stride(0), *self._places(kv, layer), self.epsilon,
            self.heads, self.kv_heads, self.head // 2, self.block_tokens)

    def attend(self, rows: int, q, control, kv, out, layer: int) -> None:
        _attend[(rows, self.kv_heads)](q, control, kv, out, control.stride(0), *self._places(kv, layer), self.head**-0.5,
                                       self.heads // self.kv_heads, self.kv_heads, self.head, self.block_tokens, 64,
                                       num_warps=8)

    def silu_mul(self, both, out) -> None:
        rows, width = out.shape
        _silu_mul[(rows, triton.cdiv(width, 1024))](both, out, width, 1024)
