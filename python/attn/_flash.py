# SPDX-License-Identifier: Apache-2.0
"""What the drop-ins for FlashAttention share: how its arguments and conventions become attn's.

Everything here works on torch tensors. An argument that attn cannot honour raises NotImplementedError with the
argument's name; nothing is dropped in silence.
"""

import math

import torch

import attn

from . import _problem


def refuse(name, why):
    raise NotImplementedError(f"{name}: {why}")


def refuse_given(**arguments):
    """Each argument must be None; the first that is not is refused by its name."""
    for name, value in arguments.items():
        if value is not None:
            refuse(name, "not offered by attn; must be None")


def window_of(window_size, keys):
    """(left, right) as whole numbers. FlashAttention takes an extent of all keys or more for an open side."""
    left, right = (-1 if w is None else int(w) for w in window_size)
    return (-1 if left < 0 or left >= keys else left), (-1 if right < 0 or right >= keys else right)


def most(length, name):
    if length is None:
        raise ValueError(f"{name}: is None, must be the longest sequence's length")
    return int(length)


def slopes_of(alibi_slopes, q):
    """attn takes slopes in float32, for float64 tensors in that."""
    return None if alibi_slopes is None else alibi_slopes.to(torch.promote_types(q.dtype, torch.float32))


def empty_up(lse):
    """FlashAttention-2's sign for rows that see nothing: +inf."""
    return lse.masked_fill(lse == -math.inf, math.inf)


def empty_down(lse):
    """The reverse, for an lse that FlashAttention-2's convention made."""
    return lse.masked_fill(lse == math.inf, -math.inf)


def new_state(device):
    """Seed and offset of one call's dropout, drawn from torch's generator on that device without waiting for it."""
    state = torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device)
    state[1] = 0
    return state


def seed_of(state, dropout_p):
    """The argument that replays the dropout which `state` holds."""
    if dropout_p == 0.0:
        return {}
    if state is None:
        refuse("rng_state", "with dropout_p > 0 backward needs the rng_state that forward returned")
    return {"seed": state}


_OPTIONS = ("layout", "causal", "window", "scale", "softcap", "dropout", "deterministic", "splits")


def plain(keys, causal, window_size, arguments):
    """The keywords of _run.forward and _run.backward, which know no autograd, from those of attn.attention."""
    chosen = {name: arguments.pop(name) for name in _OPTIONS if name in arguments}
    options = _problem.options(causal=bool(causal), window=window_of(window_size, keys), **chosen)
    return {"options": options, **arguments}


def attend(q, k, v, *, keys, causal, window_size, **options):
    """(o, lse), differentiable in q, k and v through o alone, as in FlashAttention."""
    o, lse = attn.attention(
        q, k, v, causal=bool(causal), window=window_of(window_size, keys), return_lse=True, **options
    )
    return o, lse.detach()


def absorb(q, k, qv, v, softmax_scale):
    """q.k + qv.v as one product over joined heads, with the scale that goes with it."""
    if qv is None:
        return q, k, softmax_scale
    scale = (q.shape[-1] + qv.shape[-1]) ** -0.5 if softmax_scale is None else softmax_scale
    return torch.cat((q, qv), dim=-1), torch.cat((k, v), dim=-1), scale
