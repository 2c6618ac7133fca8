# SPDX-License-Identifier: Apache-2.0
"""Drop-in for the module flash_attn_interface of FlashAttention-3, computed by attn.

Names, order, defaults, shapes and returns are the original's. lse is float32 natural log, (b, h, sq) or (h, total),
-inf where a row sees nothing, and +inf everywhere in a call that has no key at all; no gradient flows into it.
pack_gqa and scheduler_metadata are wishes about speed that attn's own plan replaces: any value is taken, the result
is the same. A num_splits above 1 is passed on. qv joins queries and keys of both parts in one product, with gradients.
"""

import math

import torch

from . import _flash, _kvcache, _merge
from ._errors import invalid
from ._flash import attend, refuse


def _refuse(attention_chunk, sm_margin, q_descale=None, k_descale=None, v_descale=None):
    if attention_chunk != 0:
        refuse("attention_chunk", f"is {attention_chunk}, must be 0: chunked attention is not offered")
    if sm_margin != 0:
        refuse("sm_margin", f"is {sm_margin}, must be 0: keeping processors free is not offered")
    _flash.refuse_given(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)


def _returned(o, lse, k, return_attn_probs):
    if not return_attn_probs:
        return o
    return o, torch.full_like(lse, math.inf) if k.numel() == 0 else lse


def _splits(num_splits):
    found = _flash.splits_of(num_splits, 256)
    return found if found > 1 else 0


def flash_attn_func(
    q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
    sm_margin=0, return_attn_probs=False,
):  # fmt: skip
    """Attention of q (b, sq, h, d) over k (b, sk, hk, d), v (b, sk, hk, dv); (o, lse) with return_attn_probs."""
    _refuse(attention_chunk, sm_margin, q_descale, k_descale, v_descale)
    q, joined, softmax_scale = _flash.absorb(q, k, qv, v, softmax_scale)
    o, lse = attend(
        q, joined, v, keys=_flash.keys_of(k), causal=causal, window_size=window_size, scale=softmax_scale,
        softcap=_flash.number("softcap", softcap), splits=_splits(num_splits), deterministic=deterministic,
        wants_lse=bool(return_attn_probs),
    )  # fmt: skip
    return _returned(o, lse, k, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
    attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, return_attn_probs=False,
):  # fmt: skip
    """As flash_attn_func, qkv being (b, s, 3, h, d), or (b, s, hq + 2 * hk, d) with num_heads_q."""
    if _flash.tensor("qkv", qkv).dim() == 5:
        q, k, v = _flash.unpacked("qkv", qkv, 3, 5)
    else:
        _flash.tensor("qkv", qkv, (None,) * 4)
        if num_heads_q is None:
            raise invalid("num_heads_q", "None", "be given for qkv of four axes")
        heads_k, odd = divmod(qkv.shape[2] - num_heads_q, 2)
        if heads_k < 0 or odd:
            raise invalid("num_heads_q", num_heads_q, f"leave an even number of qkv's {qkv.shape[2]} heads")
        q, k, v = qkv.split((num_heads_q, heads_k, heads_k), dim=2)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
        deterministic=deterministic, sm_margin=sm_margin, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None,
    softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, window_size=(-1, -1),
    attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0,
    return_attn_probs=False,
):  # fmt: skip
    """As flash_attn_func on packed sequences, of which seqused_q, seqused_k may use only the first rows."""
    _refuse(attention_chunk, sm_margin, q_descale, k_descale, v_descale)
    q, joined, softmax_scale = _flash.absorb(q, k, qv, v, softmax_scale)
    keys = _flash.most(max_seqlen_k, "max_seqlen_k")
    o, lse = attend(
        q, joined, v, keys=keys, causal=causal, window_size=window_size, layout="thd", cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_kv=cu_seqlens_k, max_seqlen_q=_flash.most(max_seqlen_q, "max_seqlen_q"), max_seqlen_kv=keys,
        used_q=seqused_q, used_kv=seqused_k, scale=softmax_scale, softcap=_flash.number("softcap", softcap), splits=_splits(num_splits),
        deterministic=deterministic, wants_lse=bool(return_attn_probs),
    )  # fmt: skip
    return _returned(o, lse, k, return_attn_probs)


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
    cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
    max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
    causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
    scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False,
):  # fmt: skip
    """Attention over a cache (rows, capacity, hk, d) into which k, v are written first, in place.

    With return_softmax_lse (o, lse, out_accum, lse_accum); the last two are empty, partial results stay inside.
    """
    _refuse(attention_chunk, sm_margin, q_descale, k_descale, v_descale)
    _flash.refuse_given(page_table=page_table)
    o, lse = _kvcache.with_kvcache(
        q, k_cache, v_cache, k, v, qv=qv, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        rotary_interleaved=rotary_interleaved, rotary_seqlens=rotary_seqlens, cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new, max_seqlen_q=max_seqlen_q, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, splits=_flash.splits_of(num_splits, 256),
    )  # fmt: skip
    if not return_softmax_lse:
        return o
    o, lse = _returned(o, lse, k_cache, True)
    return o, lse, lse.new_empty(0), lse.new_empty(0)


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """(out, lse) of partial results: out_partial (splits, b, s, h, dv), lse_partial (splits, b, s, h), both float32."""
    rows = _flash.tensor("out_partial", out_partial, (None,) * 5).shape[:-1]
    _flash.tensor("lse_partial", lse_partial, rows, device=out_partial.device)
    if out is not None:
        _flash.tensor("out", out, out_partial.shape[1:], out_dtype, out_partial.device)
    merged, lse = _merge.combine(out_partial, lse_partial)
    if out is None:
        return merged.to(out_dtype if out_dtype is not None else out_partial.dtype), lse.float()
    return out.copy_(merged), lse.float()


def get_scheduler_metadata(
    batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens,
    qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, cache_leftpad=None,
    page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), attention_chunk=0, has_softcap=False,
    num_splits=0, pack_gqa=None, sm_margin=0,
):  # fmt: skip
    """What flash_attn_with_kvcache takes as scheduler_metadata: int32 words of the original's size, unread by attn."""
    _refuse(attention_chunk, sm_margin)
    _flash.refuse_given(page_size=page_size)
    return torch.zeros(1 + batch_size, dtype=torch.int32, device=cache_seqlens.device)
