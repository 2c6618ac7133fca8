# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding of the first 2 * cos.shape[-1] elements of each head, in plain torch.

Pairs are turned in float32 (float64 for float64 tensors) and rounded once. Positions are plain index tensors, so that
dense, packed and cached rows are one computation.
"""

import torch

from attn._errors import invalid
from attn._flash import tensor


def rotate(x, cos, sin, positions, interleaved=False, inplace=False):
    """x (..., heads, dim) turned by the rows `positions` (...) of cos and sin (rows, rotary_dim / 2)."""
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise invalid("cos", f"for {2 * half} elements", f"be for at most headdim = {x.shape[-1]}")
    wide = torch.promote_types(x.dtype, torch.float32)
    c, s = (table.to(wide)[positions].unsqueeze(-2) for table in (cos, sin))
    turned = x[..., : 2 * half].to(wide)
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), dim=-1)
    turned = turned.to(x.dtype)
    if inplace:
        x[..., : 2 * half] = turned
        return x
    return torch.cat((turned, x[..., 2 * half :]), dim=-1)


def packed_positions(rows, cu_seqlens):
    """Of each packed row its position in its sequence and the sequence's number; rows past the last count on in it."""
    row = torch.arange(rows, device=cu_seqlens.device)
    bounds = cu_seqlens.long()
    sequence = torch.searchsorted(bounds[1:], row, right=True).clamp(max=max(bounds.numel() - 2, 0))
    return row - bounds[sequence], sequence


def _within(positions, cos):
    """positions; on the CPU they are looked at, since an index below 0 would count from the end."""
    if positions.device.type == "cpu" and positions.numel() and not torch.compiler.is_compiling():
        first, last = (int(n) for n in positions.aminmax())
        if first < 0 or last >= cos.shape[0]:
            raise invalid("seqlen_offsets", f"for positions {first} to {last}", f"stay within cos' {cos.shape[0]} rows")
    return positions


def _positions(x, cos, seqlen_offsets, cu_seqlens):
    """Positions of x's rows; the rows that no sequence has are held inside the table."""
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    if torch.is_tensor(seqlen_offsets):
        tensor("seqlen_offsets", seqlen_offsets, (batch,), int)
    if cu_seqlens is not None:
        at, sequence = packed_positions(x.shape[0], cu_seqlens)
        shift = seqlen_offsets[sequence].long() if torch.is_tensor(seqlen_offsets) else seqlen_offsets
        inside = torch.arange(x.shape[0], device=x.device) < cu_seqlens[-1]
        return _within(torch.where(inside, at + shift, 0), cos)
    batch, seqlen = x.shape[:2]
    if torch.is_tensor(seqlen_offsets):
        shift = seqlen_offsets.long().view(-1, 1)
    else:
        shift = seqlen_offsets
        if shift < 0 or shift + seqlen > cos.shape[0]:
            raise invalid("seqlen_offsets", shift, f"be at least 0 and reach at most cos' {cos.shape[0]} rows with {seqlen} more")
    return _within((torch.arange(seqlen, device=x.device) + shift).expand(batch, seqlen), cos)


def apply_rotary_emb(
    x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None
):  # fmt: skip
    """x (b, s, h, d), or (total, h, d) with cu_seqlens; each sequence starts at position seqlen_offsets."""
    tensor("x", x, (None,) * (4 if cu_seqlens is None else 3))
    tensor("cos", cos, (None, None), device=x.device)
    tensor("sin", sin, cos.shape, device=x.device)
    if cu_seqlens is not None:
        tensor("cu_seqlens", cu_seqlens, (None,), int, x.device)
    return rotate(x, cos, sin, _positions(x, cos, seqlen_offsets, cu_seqlens), interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False, seqlen_offsets=0):
    """Turns the keys of kv (b, s, 2, hk, d) in place."""
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv


def apply_rotary_emb_qkv_(
    qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False, seqlen_offsets=0, num_heads_q=None
):  # fmt: skip
    """Turns queries and keys of qkv (b, s, 3, h, d), or (b, s, hq + 2 * hk, d) with num_heads_q, in place."""
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    elif num_heads_q is None:
        raise invalid("num_heads_q", "None", "be given for qkv of four axes")
    else:
        heads_k = (qkv.shape[2] - num_heads_q) // 2
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q : num_heads_q + heads_k]
    apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
    apply_rotary_emb(
        k, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k, interleaved, True, seqlen_offsets
    )
    return qkv
