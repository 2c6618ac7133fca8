# SPDX-License-Identifier: Apache-2.0
"""attn among the attention implementations of Hugging Face transformers.

    attn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attn")

Masks: transformers states what a model's rows may see (causal, sliding window, chunks, padding, packed position ids) as
a function; where it is more than plain causality it comes here as a boolean tensor (batch, 1, rows, keys), and a mask
that a user gives as floats is added as a bias. So attn's answer is eager's, except that a row of padding which sees
nothing is 0 instead of an average over what is hidden.
"""

import torch

import attn

_NAME = "attn"


def attention_forward(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, softcap=None,
    is_causal=None, s_aux=None, position_bias=None, **kwargs,
):  # fmt: skip
    """query (b, h, s, d), key and value (b, hk, s_kv, d) to (output (b, s, h, d), None)."""
    if kwargs.get("output_attentions"):
        raise NotImplementedError("output_attentions: attn does not store the probabilities; use eager attention")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    mask = bias = None
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            mask = attention_mask[..., : key.shape[2]]
        else:
            bias = attention_mask[..., : key.shape[2]]
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    wide = torch.promote_types(query.dtype, torch.float32)
    if bias is not None and bias.dtype != query.dtype:
        bias = bias.to(wide)
    # Without a mask transformers counts on PyTorch's rule: causal from the top left, and no rule for a single row.
    # A sliding window arrives as a mask wherever it hides anything.
    output = attn.attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
        causal=bool(is_causal) and attention_mask is None and query.shape[2] > 1, corner="top-left",
        mask=mask, bias=bias, scale=scaling, softcap=softcap or 0.0, dropout=dropout,
        sink=None if s_aux is None else s_aux.to(wide),
    )  # fmt: skip
    return output, None


def register(name=_NAME):
    """Makes attn_implementation=name choose attn; returns the name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)
    return name
