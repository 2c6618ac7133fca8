# SPDX-License-Identifier: Apache-2.0
"""The matrix S_dmask of FlashAttention-2: a testing aid that shows which probabilities dropout kept.

attn stores no probabilities, so they are asked for: with values that are columns of the identity, the output is the
columns of the matrix, with dropout and without it. That takes two calls for every 128 keys and memory for the whole."""
import torch

from . import _flash, _tensors
from .flash_attn.layers.rotary import packed_positions

_BLOCK = 128


def _rounded(n):
    return (n + _BLOCK - 1) // _BLOCK * _BLOCK


def matrix(q, k, keys, *, dropout, seed, **options):
    """(b, h, sq, sk) in q's type, sq and sk up to multiples of 128, the rest 0: exp(score - the row's largest), negative
    where it was dropped; of packed rows sq and sk are the longest. options: as of _flash.attend."""
    packed = options.get("layout") == "thd"
    q, k = q.detach(), k.detach()
    wide = torch.promote_types(q.dtype, torch.float32)
    if packed:
        cu_q, cu_k = (torch.as_tensor(_tensors.lengths(options["cu_seqlens_" + side], "")).to(q.device) for side in ("q", "kv"))
        batch, rows = cu_q.numel() - 1, options["max_seqlen_q"]
        position, _ = packed_positions(k.shape[0], cu_k)
        at, sequence = packed_positions(q.shape[0], cu_q)
        inside = torch.arange(q.shape[0], device=q.device) < cu_q[-1]
        at, sequence = at[inside], sequence[inside]
    else:
        batch, rows = q.shape[:2]
        position = torch.arange(keys, device=q.device)
    found = torch.zeros(batch, q.shape[-2], _rounded(rows), _rounded(keys), dtype=wide, device=q.device)
    for first in range(0, keys, _BLOCK):
        column = torch.arange(first, first + _BLOCK, device=q.device)
        one = (position[:, None] == column).to(q.dtype).unsqueeze(1)
        v = (one if packed else one.unsqueeze(0)).expand(*k.shape[:-1], _BLOCK)
        call = lambda **more: _flash.attend(q, k, v, keys=keys, wants_lse=False, out_dtype=wide, **options, **more)[0]
        whole, kept = call(), call(dropout=dropout, seed=seed)
        signed = torch.where(kept == 0, -whole, whole)
        if packed:
            found[sequence, :, at, first : first + _BLOCK] = signed[inside]
        else:
            found[:, :, :rows, first : first + _BLOCK] = signed.transpose(1, 2)
    if not keys:
        return found.to(q.dtype)
    largest = found.abs().amax(-1, keepdim=True)
    return (found / torch.where(largest > 0, largest, 1.0)).to(q.dtype)
