# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache for both drop-ins: rotate, append into the cache, attend over it. No gradients.

The cache is (rows, capacity, heads_kv, dim). Sequence s of the batch lives in row s, or in row cache_batch_idx[s]; its
keys are the first cache_seqlens[s] of that row, and new ones are written behind them, in place. Left padding is a
mask of keys: since both ends of the causal and window rule move with it, hiding the keys is all that it takes.

All is checked and planned before the cache is written. What numbers on a GPU say (lengths, rows of the cache) is the
exception, since reading them would stall it: those past an end fail in torch's own index check.
"""

import operator

import torch

from . import _flash, _run
from ._errors import invalid
from .flash_attn.layers.rotary import packed_positions, rotate


def _numbers(name, t, count, device):
    """A row of so many whole numbers as int32 on the device; None for None."""
    return None if t is None else _flash.tensor(name, t, (count,), int).to(device=device, dtype=torch.int32)


def _lengths(cache_seqlens, batch, capacity, added, device):
    if cache_seqlens is None or isinstance(cache_seqlens, torch.Tensor):
        return _numbers("cache_seqlens", cache_seqlens, batch, device)
    try:
        length = operator.index(cache_seqlens)
    except TypeError:
        raise invalid("cache_seqlens", repr(cache_seqlens), "be a whole number or a tensor of them") from None
    behind = added if isinstance(added, int) else 0
    if not 0 <= length <= capacity - behind:
        raise invalid("cache_seqlens", length, f"be from 0 to the cache's {capacity}" + (f" less {behind} new keys" if behind else ""))
    return torch.full((batch,), length, dtype=torch.int32, device=device)


def _offsets(name, cu, batch, rows, longest=None):
    """cu_seqlens: on the CPU its numbers are looked at too."""
    _flash.tensor(name, cu, (batch + 1,), int)
    if cu.device.type != "cpu":
        return
    ends = cu.tolist()
    if ends[0] != 0 or any(a > b for a, b in zip(ends, ends[1:])) or ends[-1] > rows:
        raise invalid(name, ends, f"start with 0, not decrease, and stay within {rows} rows")
    if longest is not None and any(b - a > longest for a, b in zip(ends, ends[1:])):
        raise invalid(name, ends, f"have no sequence longer than {longest}")


def _fits(lengths, added, idx, appended, rows, capacity):
    """On the CPU: lengths that stay within the cache, rows that it has."""
    if lengths is not None and lengths.device.type == "cpu" and lengths.numel():
        end = lengths + added
        if int(lengths.min()) < 0 or int(end.max()) > capacity:
            raise invalid("cache_seqlens", f"up to {int(end.max())} with the new keys", f"be from 0 to the cache's {capacity}")
    if idx is not None and idx.device.type == "cpu" and idx.numel():
        if int(idx.min()) < 0 or int(idx.max()) >= rows:
            raise invalid("cache_batch_idx", idx.tolist(), f"be from 0 to {rows - 1}, a row of the cache")
        if appended and idx.unique().numel() != idx.numel():
            raise invalid("cache_batch_idx", idx.tolist(), "name no row of the cache twice where k is given")


def _check_rotary(cos, sin, k, dim, capacity, device):
    if (cos is None) != (sin is None):
        raise invalid("rotary_sin" if sin is None else "rotary_cos", "None", "be given where the other table is")
    if cos is None:
        return
    if k is None:
        raise invalid("rotary_cos", "given", "be left out without k")
    _flash.tensor("rotary_cos", cos, (None, None), device=device)
    _flash.tensor("rotary_sin", sin, cos.shape, cos.dtype, device)
    if cos.shape[0] < capacity:
        raise invalid("rotary_cos", f"of {cos.shape[0]} rows", f"have at least the cache's {capacity}")
    if 2 * cos.shape[1] > dim:
        raise invalid("rotary_cos", f"for {2 * cos.shape[1]} elements", f"be for at most headdim = {dim}")


def _check_turns(start, steps, cos):
    """On the CPU: positions that the tables have."""
    if cos is not None and start.device.type == "cpu" and start.numel():
        reach = int(start.max()) + steps
        if int(start.min()) < 0 or reach > cos.shape[0]:
            raise invalid("rotary_cos", f"of {cos.shape[0]} rows", f"have the positions {int(start.min())} to {reach - 1}")


def _check_new(k, v, cu_seqlens_k_new, k_cache, v_cache, batch):
    """Of how many new keys each sequence has, a number or a tensor."""
    if (k is None) != (v is None):
        raise invalid("k" if k is None else "v", "None", "be given where the other one is")
    if k is None:
        if cu_seqlens_k_new is not None:
            raise invalid("cu_seqlens_k_new", "given", "be left out without k")
        return 0
    ragged = cu_seqlens_k_new is not None
    _flash.tensor("k", k, (None, *k_cache.shape[2:]) if ragged else (batch, None, *k_cache.shape[2:]), k_cache.dtype, k_cache.device)
    _flash.tensor("v", v, (*k.shape[:-1], v_cache.shape[3]), v_cache.dtype, v_cache.device)
    if not ragged:
        return k.shape[1]
    _offsets("cu_seqlens_k_new", cu_seqlens_k_new, batch, k.shape[0])
    return cu_seqlens_k_new[1:] - cu_seqlens_k_new[:-1]


def _append_packed(cache, new, sequence, rows, positions, total):
    """Rows of `new` past the last sequence repeat its last row, so that they write what is written anyway."""
    if new.shape[0] == 0:
        return
    source = torch.arange(new.shape[0], device=new.device).clamp(max=(total - 1).clamp(min=0))
    row, position = rows[sequence[source]], positions[source]
    some = (total > 0).view(1, 1, 1)
    cache[row, position] = torch.where(some, new[source], cache[row, position])


class _Keys:
    """What attention reads of the caches: they themselves, or room for a copy, which fill() makes once they are written."""

    def __init__(self, k_cache, v_cache, idx, batch, joined, flat):
        self.caches, self.idx, self.batch, self.joined, self.flat = (k_cache, v_cache), idx, batch, joined, flat
        k, v = k_cache[:batch], v_cache[:batch]
        if idx is not None:
            k, v = (t.new_empty(batch, *t.shape[1:]) for t in (k_cache, v_cache))
        elif flat:
            k, v = (t if t.is_contiguous() else torch.empty_like(t, memory_format=torch.contiguous_format) for t in (k, v))
        self.parts = (k, v)
        self.k = k.new_empty(*k.shape[:3], k.shape[3] + v.shape[3]) if joined else k
        self.k, self.v = (t.flatten(0, 1) if flat else t for t in (self.k, v))

    def fill(self):
        for part, cache in zip(self.parts, self.caches):
            if self.idx is not None:
                torch.index_select(cache, 0, self.idx, out=part)
            elif part.data_ptr() != cache.data_ptr():
                part.copy_(cache[: self.batch])
        if self.joined:
            torch.cat(self.parts, dim=-1, out=self.k.view(*self.parts[0].shape[:3], -1))


def with_kvcache(
    q, k_cache, v_cache, k, v, *, qv=None, rotary_cos=None, rotary_sin=None, rotary_interleaved=True,
    rotary_seqlens=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, cu_seqlens_q=None,
    cu_seqlens_k_new=None, max_seqlen_q=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi=None, splits=0,
):  # fmt: skip
    """(o, lse) with attn's lse: -inf where a row sees nothing."""
    ragged = cu_seqlens_q is not None
    _flash.tensor("q", q, (None,) * (3 if ragged else 4))
    _flash.tensor("k_cache", k_cache, (None,) * 4, q.dtype, q.device)
    _flash.tensor("v_cache", v_cache, (*k_cache.shape[:3], None), q.dtype, q.device)
    _flash.refuse_gradients(q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, qv=qv)
    batch = _flash.tensor("cu_seqlens_q", cu_seqlens_q, (None,), int).numel() - 1 if ragged else q.shape[0]
    capacity, device = k_cache.shape[1], q.device
    if cache_batch_idx is None and k_cache.shape[0] < batch:
        raise invalid("k_cache", f"of {k_cache.shape[0]} rows", f"have at least batch = {batch}")
    longest = _flash.most(max_seqlen_q, "max_seqlen_q") if ragged else q.shape[1]
    if ragged:
        _offsets("cu_seqlens_q", cu_seqlens_q, batch, q.shape[0], longest)
    if k is not None and cache_seqlens is None:
        raise invalid("cache_seqlens", "None", "be given where k is")
    added = _check_new(k, v, cu_seqlens_k_new, k_cache, v_cache, batch)
    _check_rotary(rotary_cos, rotary_sin, k, q.shape[-1], capacity, device)
    lengths = _lengths(cache_seqlens, batch, capacity, added, device)
    idx = _numbers("cache_batch_idx", cache_batch_idx, batch, device)
    leftpad = _numbers("cache_leftpad", cache_leftpad, batch, device)
    _fits(lengths, added, idx, k is not None, k_cache.shape[0], capacity)
    start = lengths if rotary_seqlens is None else _numbers("rotary_seqlens", rotary_seqlens, batch, device)
    fresh = added if isinstance(added, int) else int(added.max()) if added.device.type == "cpu" and added.numel() else 0
    _check_turns(start, max(longest, fresh, 1), rotary_cos)
    moving = causal or _flash.window_of(window_size, capacity) != (-1, -1)

    with torch.no_grad():
        turn = lambda x, at: x if rotary_cos is None else rotate(x, rotary_cos, rotary_sin, at, rotary_interleaved)
        if rotary_cos is not None:
            if ragged:
                at, sequence = packed_positions(q.shape[0], cu_seqlens_q)
                at = (at if moving else 0) + start[sequence].long()
            else:
                at = start[:, None].long() + (torch.arange(longest, device=device) if moving else 0)
                at = at.expand(batch, longest)
            q = turn(q, at)
        joined_q, _, softmax_scale = _flash.absorb(q, k_cache, qv, v_cache, softmax_scale)
        keys = _Keys(k_cache, v_cache, idx, batch, qv is not None, ragged)
        options = {"scale": softmax_scale, "softcap": _flash.number("softcap", softcap), "alibi": _flash.slopes_of(alibi, q),
                   "splits": splits}  # fmt: skip
        if lengths is not None:
            options["used_kv"] = (lengths + added).to(torch.int32)
        if leftpad is not None:
            options["mask"] = (torch.arange(capacity, device=device) >= leftpad[:, None])[:, None, None, :]
        if ragged:
            options["layout"], options["cu_seqlens_q"], options["max_seqlen_q"] = "thd", cu_seqlens_q, longest
            options["cu_seqlens_kv"] = torch.arange(batch + 1, dtype=torch.int32, device=device) * capacity
            options["max_seqlen_kv"] = capacity
        with _flash.their_names(k="k_cache", v="v_cache", used_kv="cache_seqlens", mask="cache_leftpad"):
            o, lse, run = _run.forward_later(joined_q, keys.k, keys.v, **_flash.plain(capacity, causal, window_size, options))

        if k is not None:
            rows = torch.arange(batch, device=device) if idx is None else idx.long()
            if cu_seqlens_k_new is None:
                fresh = torch.arange(added, device=device)
                at = lengths[:, None].long() + fresh
                k = k if rotary_cos is None else turn(k, start[:, None].long() + fresh)
                k_cache[rows[:, None], at], v_cache[rows[:, None], at] = k, v
            else:
                fresh, sequence = packed_positions(k.shape[0], cu_seqlens_k_new)
                k = k if rotary_cos is None else turn(k, start[sequence].long() + fresh)
                at, total = lengths[sequence].long() + fresh, cu_seqlens_k_new[-1].long()
                _append_packed(k_cache, k, sequence, rows, at, total)
                _append_packed(v_cache, v, sequence, rows, at, total)
        keys.fill()
        with _flash.their_names(k="k_cache", v="v_cache", used_kv="cache_seqlens", mask="cache_leftpad"):
            run()
        return o, lse
