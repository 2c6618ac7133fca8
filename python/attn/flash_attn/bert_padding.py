# SPDX-License-Identifier: Apache-2.0
"""Between padded (batch, seqlen, ...) and packed (total, ...) tensors. All of it is differentiable."""

import torch

from attn._flash import tensor


def index_first_axis(input, indices):
    """The named rows of input."""
    return input.index_select(0, indices)


def index_put_first_axis(values, indices, first_axis_dim):
    """Rows of zeros, the named ones being values."""
    rows = values.new_zeros((first_axis_dim,) + values.shape[1:])
    return rows.index_copy(0, indices.long(), values)  # int32 is taken too: callers pass cu_seqlens[:-1]


def _packing(lengths):
    cu_seqlens = torch.zeros(lengths.numel() + 1, dtype=torch.int32, device=lengths.device)
    cu_seqlens[1:] = lengths.cumsum(0)
    return cu_seqlens, int(lengths.max()) if lengths.numel() else 0


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """Packed rows, their indices among batch * seqlen, cu_seqlens, the longest length, lengths without unused rows.

    unused_mask marks rows that are packed along with those of attention_mask but do not count as used.
    """
    tensor("attention_mask", attention_mask, tensor("hidden_states", hidden_states).shape[:2])
    if unused_mask is not None:
        tensor("unused_mask", unused_mask, attention_mask.shape)
    every = attention_mask if unused_mask is None else attention_mask + unused_mask
    used = attention_mask.sum(-1, dtype=torch.int32)
    cu_seqlens, longest = _packing(every.sum(-1, dtype=torch.int32))
    indices = every.flatten().nonzero().flatten()
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest, used


def unpad_input_for_concatenated_sequences(hidden_states, attention_mask_in_length):
    """As unpad_input for rows that hold several sequences each, whose lengths are the row's nonzero entries."""
    tensor("attention_mask_in_length", attention_mask_in_length, hidden_states.shape[:2])
    lengths = attention_mask_in_length.flatten()
    lengths = lengths[lengths.nonzero().flatten()].to(torch.int32)
    place = torch.arange(attention_mask_in_length.shape[-1], device=lengths.device)
    filled = place < attention_mask_in_length.sum(-1, keepdim=True)
    cu_seqlens, longest = _packing(lengths)
    indices = filled.flatten().nonzero().flatten()
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest


def pad_input(hidden_states, indices, batch, seqlen):
    """The reverse of unpad_input: (batch, seqlen, ...) with zeros where nothing was packed."""
    tensor("indices", indices, tensor("hidden_states", hidden_states).shape[:1], int)
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
