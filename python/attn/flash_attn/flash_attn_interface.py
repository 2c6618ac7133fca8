# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-2's functions with their names, order, defaults, shapes and returns, computed by attn.

Shapes: q (b, sq, h, d), k and v (b, sk, hk, d), qkv (b, s, 3, h, d), kv (b, s, 2, hk, d); varlen joins the first two
axes. lse is float32 natural log, (b, h, sq) or (h, total), +inf where a row sees nothing; no gradient flows into it.
Wider than the original: any device and float type that attn runs, any head size, softcap together with dropout.

The four underscored calls are what ring attention is written on. Their parameters carry the original's names, which
callers inspect. rng_state is [seed, offset] as int64; backward replays the dropout that it names.
"""

import torch

from attn import _flash, _kvcache, _probs, _run
from attn._flash import attend, refuse


class _RawBinding:
    """Stands where the original keeps its compiled module; has no function of it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"flash_attn_gpu.{name}", "is of the compiled module of flash_attn: not offered, use the functions here")


flash_attn_gpu = _RawBinding()


def _returned(o, lse, kept, return_attn_probs):
    """o, or (o, lse, S_dmask), which is empty as it is in the original without dropout."""
    if not return_attn_probs:
        return o
    return o, _flash.empty_up(lse), o.new_empty(0) if kept is None else kept


def _options(q, dropout_p, softmax_scale, softcap, alibi_slopes):
    return {
        "dropout": _flash.number("dropout_p", dropout_p),
        "scale": None if softmax_scale is None else _flash.number("softmax_scale", softmax_scale),
        "softcap": _flash.number("softcap", softcap),
        "alibi": _flash.slopes_of(alibi_slopes, q),
    }


def _packing(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
    return {
        "layout": "thd",
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_kv": cu_seqlens_k,
        "max_seqlen_q": _flash.most(max_seqlen_q, "max_seqlen_q"),
        "max_seqlen_kv": _flash.most(max_seqlen_k, "max_seqlen_k"),
    }


def _attend(q, k, v, keys, return_attn_probs, **options):
    """What the functions return, differentiable. One seed serves the output and the matrix that shows what it dropped."""
    shown = return_attn_probs and options["dropout"] > 0.0
    if shown:
        options["seed"] = _flash.new_state(_flash.tensor("q", q).device)
    o, lse = attend(q, k, v, keys=keys, wants_lse=bool(return_attn_probs), **options)
    return _returned(o, lse, _probs.matrix(q, k, keys, **options) if shown else None, return_attn_probs)


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """Attention of q (b, sq, h, d) over k, v (b, sk, hk, d); causal is aligned to the bottom right."""
    return _attend(
        q, k, v, _flash.keys_of(k), return_attn_probs, causal=causal, window_size=window_size, deterministic=deterministic,
        **_options(q, dropout_p, softmax_scale, softcap, alibi_slopes),
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """As flash_attn_func, kv being (b, sk, 2, hk, d)."""
    k, v = _flash.unpacked("kv", kv, 2, 5)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """As flash_attn_func, qkv being (b, s, 3, h, d)."""
    q, k, v = _flash.unpacked("qkv", qkv, 3, 5)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    """As flash_attn_func on packed sequences: q (total_q, h, d), k, v (total_k, hk, d), cu_seqlens int32 (b + 1)."""
    _flash.refuse_given(block_table=block_table)
    packing = _packing(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _attend(
        q, k, v, packing["max_seqlen_kv"], return_attn_probs, causal=causal, window_size=window_size, deterministic=deterministic,
        **packing, **_options(q, dropout_p, softmax_scale, softcap, alibi_slopes),
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """As flash_attn_varlen_func, kv being (total_k, 2, hk, d)."""
    k, v = _flash.unpacked("kv", kv, 2, 4)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """As flash_attn_varlen_func, qkv being (total, 3, h, d)."""
    q, k, v = _flash.unpacked("qkv", qkv, 3, 4)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    """Attention over a cache (rows, capacity, hk, d) into which k, v (b, s_new, hk, d) are written first, in place."""
    _flash.refuse_given(block_table=block_table)
    o, lse = _kvcache.with_kvcache(
        q, k_cache, v_cache, k, v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        softcap=softcap, alibi=alibi_slopes, splits=_flash.splits_of(num_splits, 128),
    )  # fmt: skip
    return (o, _flash.empty_up(lse)) if return_softmax_lse else o


def _forward(q, k, v, keys, dropout_p, return_softmax, causal, window_size, **options):
    _flash.refuse_gradients(q=q, k=k, v=v)
    state = _flash.new_state(q.device) if dropout_p > 0.0 else torch.zeros(2, dtype=torch.int64, device=q.device)
    options.update(_flash.seed_of(state, dropout_p))
    with torch.no_grad(), _flash.their_names():
        o, lse = _run.forward(q, k, v, **_flash.plain(keys, causal, window_size, dict(options)))
    kept = o.new_empty(0)
    if return_softmax and dropout_p > 0.0:
        kept = _probs.matrix(q, k, keys, causal=causal, window_size=window_size, **options)
    return o, _flash.empty_up(lse), kept, state


def _flash_attn_forward(
    q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
    return_softmax,
):  # fmt: skip
    """(out, lse, S_dmask, rng_state), without autograd."""
    return _forward(
        q, k, v, _flash.keys_of(k), dropout_p, return_softmax, causal, (window_size_left, window_size_right),
        **_options(q, dropout_p, softmax_scale, softcap, alibi_slopes),
    )  # fmt: skip


def _flash_attn_varlen_forward(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
    window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False, block_table=None,
    leftpad_k=None, seqused_k=None, zero_tensors=False, num_splits=0,
):  # fmt: skip
    """(out, lse, S_dmask, rng_state), without autograd. Rows past the last sequence are always 0."""
    _flash.refuse_given(block_table=block_table, leftpad_k=leftpad_k)
    packing = _packing(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _forward(
        q, k, v, packing["max_seqlen_kv"], dropout_p, return_softmax, causal, (window_size_left, window_size_right),
        used_kv=seqused_k, splits=num_splits, **packing, **_options(q, dropout_p, softmax_scale, softcap, alibi_slopes),
    )  # fmt: skip


def _backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, keys, causal, window_size, **options):
    """Writes the gradients and returns the sum over dim of dout * out, (b, h, sq) or (h, total)."""
    for name, t in (("q", q), ("k", k), ("v", v), ("dout", dout), ("out", out), ("softmax_lse", softmax_lse)):
        _flash.tensor(name, t)
    given = {name: _flash.tensor(name, t) for name, t in (("dq", dq), ("dk", dk), ("dv", dv)) if t is not None}
    lse, delta = (torch.empty_like(softmax_lse, memory_format=torch.contiguous_format) for _ in range(2))
    with torch.no_grad(), _flash.their_names():
        _, run = _run.backward_later(
            dout, q, k, v, out, lse, delta=delta, need=(), **given, **_flash.plain(keys, causal, window_size, options)
        )
        lse.copy_(_flash.empty_down(softmax_lse))
        torch.sum((dout.to(delta.dtype) * out.to(delta.dtype)).transpose(-2, -3), -1, out=delta)
        run()
    return delta


def _flash_attn_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
    window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
):  # fmt: skip
    """Writes dq, dk, dv in place; out and softmax_lse may be those of a whole of which k, v are a part."""
    return _backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, _flash.keys_of(k), causal, (window_size_left, window_size_right),
        deterministic=deterministic, **_flash.seed_of(rng_state, dropout_p),
        **_options(q, dropout_p, softmax_scale, softcap, alibi_slopes),
    )  # fmt: skip


def _flash_attn_varlen_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
    softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    zero_tensors=False,
):  # fmt: skip
    """As _flash_attn_backward on packed sequences. Rows past the last sequence are always 0."""
    packing = _packing(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, packing["max_seqlen_kv"], causal,
        (window_size_left, window_size_right), deterministic=deterministic, **packing,
        **_flash.seed_of(rng_state, dropout_p), **_options(q, dropout_p, softmax_scale, softcap, alibi_slopes),
    )  # fmt: skip
