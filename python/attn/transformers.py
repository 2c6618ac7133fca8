# SPDX-License-Identifier: Apache-2.0
"""attn among the attention implementations of Hugging Face transformers.

    attn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attn")

Masks: transformers states what a model's rows may see as a function. Causality, sliding windows, packed position ids and
padding on one side become options of attn, in memory linear in the tokens (_seen). The rest (chunks, functions of a
model's own, padding on both sides, traced calls) comes as a boolean tensor (batch, 1, rows, keys), and a mask that a user
gives as floats is added as a bias. So attn's answer is eager's, except that a row of padding which sees nothing is 0
instead of an average over what is hidden. cu_seq_lens_q and cu_seq_lens_k divide the rows further.
"""

import torch

import attn

from . import _seen, _torch

_NAME = "attn"


def _divided(mask, cu_q, cu_k, q, k):
    """The boolean mask with pairs of different sequences hidden."""
    at = lambda cu, n: torch.bucketize(torch.arange(n, device=cu.device, dtype=cu.dtype), cu, right=True)
    return mask & (at(cu_q, q.shape[2]).unsqueeze(1) == at(cu_k, k.shape[2]))


def _packed(query, key, value, rows_q, rows_k, options):
    """Attention over rows taken out of (batch, heads, tokens, dim); rows left out are 0. Answers (batch, tokens, heads, dim)."""
    (at_q, cu_q, longest_q), (at_k, cu_k, longest_k) = rows_q, rows_k
    flat = [t.transpose(1, 2).flatten(0, 1) for t in (query, key, value)]
    q, k, v = (t if at is None else t.index_select(0, at) for t, at in zip(flat, (at_q, at_k, at_k)))
    o = attn.attention(q, k, v, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_kv=cu_k, max_seqlen_q=longest_q, max_seqlen_kv=longest_k, **options)
    if at_q is not None:
        o = o.new_zeros(flat[0].shape[0], *o.shape[1:]).index_copy(0, at_q, o)
    return o.unflatten(0, (query.shape[0], query.shape[2]))


def attention_forward(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, softcap=None,
    is_causal=None, s_aux=None, position_bias=None, cu_seq_lens_q=None, cu_seq_lens_k=None, max_length_q=None, max_length_k=None,
    **kwargs,
):  # fmt: skip
    """query (b, h, s, d), key and value (b, hk, s_kv, d) to (output (b, s, h, d), None)."""
    if kwargs.get("output_attentions"):
        raise NotImplementedError("output_attentions: attn does not store the probabilities; use eager attention")
    if (cu_seq_lens_q is None) != (cu_seq_lens_k is None):
        raise ValueError("cu_seq_lens_q and cu_seq_lens_k: must be given together")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    wide = torch.promote_types(query.dtype, torch.float32)
    options = dict(scale=scaling, softcap=softcap or 0.0, dropout=dropout, sink=None if s_aux is None else s_aux.to(wide))
    seen, mask, bias = None, None, position_bias
    if isinstance(attention_mask, _seen.Seen):
        if position_bias is None and attention_mask.fits(query, key) and (cu_seq_lens_q is None or not attention_mask.padded):
            seen = attention_mask
        else:
            mask = attention_mask.dense()[..., : key.shape[2]]
    elif attention_mask is not None and attention_mask.dtype == torch.bool:
        mask = attention_mask[..., : key.shape[2]]
    elif attention_mask is not None:
        bias = attention_mask[..., : key.shape[2]]
        bias = bias if position_bias is None else bias + position_bias
    if bias is not None and bias.dtype != query.dtype:
        bias = bias.to(wide)
    # Without a mask transformers counts on PyTorch's rule: causal from the top left, and no rule for a single row.
    # A sliding window arrives as a mask wherever it hides anything.
    causal, window = bool(is_causal) and attention_mask is None and query.shape[2] > 1, (-1, -1)
    if seen is not None:
        causal, window, key, value = seen.causal, seen.window, key[:, :, : seen.keys], value[:, :, : seen.keys]
    rows = None if seen is None else seen.rows
    if cu_seq_lens_q is not None and mask is None and bias is None:
        rows = (None, cu_seq_lens_q, max_length_q), (None, cu_seq_lens_k, max_length_k)
    if rows is not None:
        return _packed(query, key, value, *rows, dict(options, causal=causal, window=window)), None
    if cu_seq_lens_q is not None:
        whole = torch.ones((), dtype=torch.bool, device=query.device) if mask is None else mask
        mask = _divided(whole, cu_seq_lens_q, cu_seq_lens_k, query, key)
    # Keys past the last row's own are left out of `seen`, so that the corners meet; used lengths come with equal starts.
    corner = "bottom-right" if seen is not None and seen.ahead else "top-left"
    output = attn.attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), causal=causal, corner=corner, window=window,
        mask=mask, bias=bias, used_kv=None if seen is None else seen.used, **options,
    )  # fmt: skip
    return output, None


def attention_mask(
    batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None,
    allow_is_causal_skip=True, allow_is_bidirectional_skip=False, use_vmap=False, device="cpu", **kwargs,
):  # fmt: skip
    """What attention_forward gets as attention_mask: None, rules, or a boolean tensor."""
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    function = causal_mask_function if mask_function is None else mask_function

    def dense(**skips):
        return sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function=function, attention_mask=attention_mask,
                         use_vmap=use_vmap, device=device, **{**kwargs, **skips})

    skips = dict(allow_is_causal_skip=allow_is_causal_skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip)
    offsets = all(isinstance(n, int) for n in (q_length, kv_length, q_offset, kv_offset))
    # One row's mask is no larger than the keys.
    if use_vmap or _torch.traced() or not offsets or q_length < 2 or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return dense(**skips)
    padding = None
    if attention_mask is not None:
        if attention_mask.dim() != 2 or attention_mask.shape[0] != batch_size:
            return dense(**skips)
        padding = attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)
        padding = torch.nn.functional.pad(padding, (0, kv_length - padding.shape[1]))
    device = torch.device(device)
    whole = lambda: dense(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    found = _seen.of(function, whole, batch_size, q_length, kv_length, q_offset - kv_offset, padding, device)
    if found is None:
        return None if allow_is_causal_skip or allow_is_bidirectional_skip else whole()
    return dense(**skips) if found is False else found


def register(name=_NAME):
    """Makes attn_implementation=name choose attn; returns the name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    return name
