# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache for both drop-ins: rotate, append into the cache, attend over it. No gradients.

The cache is (rows, capacity, heads_kv, dim). Sequence s of the batch lives in row s, or in row cache_batch_idx[s]; its
keys are the first cache_seqlens[s] of that row, and new ones are written behind them, in place. Left padding is a
mask of keys: since both ends of the causal and window rule move with it, hiding the keys is all that it takes.

Limits: no paging. With cache_batch_idx the named rows are gathered for the call, with qv keys and values are joined
for it; both cost a copy of what they read. Lengths on the CPU, and one number for all, are checked before the cache is written; on a
GPU, where reading them would stall it, a length past the cache's end fails in torch's own index check.
"""

import torch

from . import _flash, _run
from .flash_attn.layers.rotary import packed_positions, rotate


def _lengths(cache_seqlens, batch, device):
    if cache_seqlens is None:
        return None
    if isinstance(cache_seqlens, int):
        return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=device)
    if cache_seqlens.shape != (batch,):
        raise ValueError(f"cache_seqlens: has shape {tuple(cache_seqlens.shape)}, must be ({batch},)")
    return cache_seqlens.to(device=device, dtype=torch.int32)


def _check(given, lengths, added, rows, capacity, k):
    if isinstance(given, int) and isinstance(added, int) and not 0 <= given <= capacity - added:
        raise ValueError(f"cache_seqlens: reaches {given + added} with the new keys, must be within 0 ... {capacity}")
    if lengths.is_cuda or lengths.numel() == 0:
        return
    end = lengths + added
    if int(lengths.min()) < 0 or int(end.max()) > capacity:
        raise ValueError(f"cache_seqlens: reaches {int(end.max())} with the new keys, must be within 0 ... {capacity}")
    if k is not None and rows is not None and rows.unique().numel() != rows.numel():
        raise ValueError("cache_batch_idx: repeats a row of the cache while k is given")


def _append(cache, new, rows, positions):
    cache[rows, positions] = new.to(cache.dtype)


def _append_packed(cache, new, sequence, rows, positions, total):
    """Rows of `new` past the last sequence repeat its last row, so that they write what is written anyway."""
    if new.shape[0] == 0:
        return
    source = torch.arange(new.shape[0], device=new.device).clamp(max=(total - 1).clamp(min=0))
    row, position = rows[sequence[source]], positions[source]
    some = (total > 0).view(1, 1, 1)
    cache[row, position] = torch.where(some, new[source].to(cache.dtype), cache[row, position])


def with_kvcache(
    q, k_cache, v_cache, k, v, *, qv=None, rotary_cos=None, rotary_sin=None, rotary_interleaved=True,
    rotary_seqlens=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, cu_seqlens_q=None,
    cu_seqlens_k_new=None, max_seqlen_q=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi=None, splits=0,
):  # fmt: skip
    """(o, lse) with attn's lse: -inf where a row sees nothing."""
    if (k is None) != (v is None):
        raise ValueError("v: k and v must be given together")
    if k is not None and cache_seqlens is None:
        raise ValueError("cache_seqlens: is None, must be given when k is")
    if rotary_cos is not None and k is None:
        raise ValueError("rotary_cos: is given without k")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("rotary_sin: rotary_cos and rotary_sin must be given together")
    if cu_seqlens_k_new is not None and k is None:
        raise ValueError("cu_seqlens_k_new: is given without k")
    ragged = cu_seqlens_q is not None
    batch = cu_seqlens_q.numel() - 1 if ragged else q.shape[0]
    capacity, device = k_cache.shape[1], q.device
    if cache_batch_idx is None and k_cache.shape[0] < batch:
        raise ValueError(f"k_cache: has {k_cache.shape[0]} rows, must have at least batch = {batch}")
    longest = _flash.most(max_seqlen_q, "max_seqlen_q") if ragged else q.shape[1]

    with torch.no_grad():
        lengths = _lengths(cache_seqlens, batch, device)
        rows = torch.arange(batch, device=device) if cache_batch_idx is None else cache_batch_idx.long()
        if k is None:
            added = 0
        elif cu_seqlens_k_new is None:
            added = k.shape[1]
        else:
            added = cu_seqlens_k_new[1:] - cu_seqlens_k_new[:-1]
        if lengths is not None:
            _check(cache_seqlens, lengths, added, cache_batch_idx, capacity, k)

        if rotary_cos is not None:
            start = lengths if rotary_seqlens is None else rotary_seqlens.to(device=device, dtype=torch.int32)
            moving = causal or _flash.window_of(window_size, capacity) != (-1, -1)
            table = (rotary_cos, rotary_sin)
            if ragged:
                at, sequence = packed_positions(q.shape[0], cu_seqlens_q)
                at = (at if moving else 0) + start[sequence].long()
            else:
                at = start[:, None].long() + (torch.arange(longest, device=device) if moving else 0)
                at = at.expand(batch, longest)
            q = rotate(q, *table, at, rotary_interleaved)
        if k is not None:
            if cu_seqlens_k_new is None:
                fresh = torch.arange(added, device=device)
                if rotary_cos is not None:
                    k = rotate(k, *table, start[:, None].long() + fresh, rotary_interleaved)
                at = lengths[:, None].long() + fresh
                _append(k_cache, k, rows[:, None], at)
                _append(v_cache, v, rows[:, None], at)
            else:
                fresh, sequence = packed_positions(k.shape[0], cu_seqlens_k_new)
                if rotary_cos is not None:
                    k = rotate(k, *table, start[sequence].long() + fresh, rotary_interleaved)
                at, total = lengths[sequence].long() + fresh, cu_seqlens_k_new[-1].long()
                _append_packed(k_cache, k, sequence, rows, at, total)
                _append_packed(v_cache, v, sequence, rows, at, total)

        pick = (lambda cache: cache[:batch]) if cache_batch_idx is None else (lambda cache: cache.index_select(0, rows))
        keys, values = pick(k_cache), pick(v_cache)
        q, keys, softmax_scale = _flash.absorb(q, keys, qv, values, softmax_scale)
        options = {"scale": softmax_scale, "softcap": softcap, "alibi": alibi, "splits": splits}
        if lengths is not None:
            options["used_kv"] = (lengths + added).to(torch.int32)
        if cache_leftpad is not None:
            seen = torch.arange(capacity, device=device) >= cache_leftpad.to(device)[:, None]
            options["mask"] = seen[:, None, None, :]
        if ragged:
            keys, values = keys.flatten(0, 1), values.flatten(0, 1)
            options["layout"], options["cu_seqlens_q"], options["max_seqlen_q"] = "thd", cu_seqlens_q, longest
            options["cu_seqlens_kv"] = torch.arange(batch + 1, dtype=torch.int32, device=device) * capacity
            options["max_seqlen_kv"] = capacity
        return _run.forward(q, keys, values, **_flash.plain(capacity, causal, window_size, options))
