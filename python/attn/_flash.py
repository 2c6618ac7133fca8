# SPDX-License-Identifier: Apache-2.0
"""What the drop-ins for FlashAttention share: how its arguments and conventions become attn's.

Everything here works on torch tensors. An argument that attn cannot honour raises NotImplementedError with the
argument's name; nothing is dropped in silence. Errors are attn.Error about the arguments as FlashAttention calls them.
"""

import math
import operator
from contextlib import contextmanager

import torch

import attn

from . import _problem
from ._errors import Error, UnsupportedError, invalid

_THEIRS = {"cu_seqlens_kv": "cu_seqlens_k", "max_seqlen_kv": "max_seqlen_k", "used_q": "seqused_q", "used_kv": "seqused_k",
           "scale": "softmax_scale", "window": "window_size", "alibi": "alibi_slopes", "dropout": "dropout_p", "splits": "num_splits",
           "lse": "softmax_lse", "o": "out"}  # fmt: skip


@contextmanager
def their_names(**more):
    """Errors from inside name the arguments as FlashAttention does."""
    try:
        yield
    except Error as error:
        raise error.renamed({**_THEIRS, **more}) from None


def refuse(name, why):
    raise UnsupportedError(name, why, "ERR_UNSUPPORTED")


def refuse_given(**arguments):
    """Each argument must be None; the first that is not is refused by its name."""
    for name, value in arguments.items():
        if value is not None:
            refuse(name, "is given, must be None: attn does not offer it")


def refuse_gradients(**tensors):
    """For calls that autograd does not see: a gradient would be lost without a word."""
    if torch.is_grad_enabled():
        for name, t in tensors.items():
            if isinstance(t, torch.Tensor) and t.requires_grad:
                raise invalid(name, "a tensor that requires a gradient", "not require one: this call has none")


def tensor(name, t, shape=None, dtype=None, device=None):
    """t, checked to be a tensor of that shape (None in it: any size), type or kind of types, and device."""
    if not isinstance(t, torch.Tensor):
        raise invalid(name, f"of type {type(t).__name__}", "be a torch tensor")
    if shape is not None and (t.dim() != len(shape) or any(n is not None and n != m for n, m in zip(shape, t.shape))):
        raise invalid(name, f"of shape {tuple(t.shape)}", "be ({})".format(", ".join("any" if n is None else str(n) for n in shape)))
    if dtype is int and (t.dtype.is_floating_point or t.dtype.is_complex or t.dtype == torch.bool):
        raise invalid(name, t.dtype, "hold whole numbers")
    if isinstance(dtype, torch.dtype) and t.dtype != dtype:
        raise invalid(name, t.dtype, f"be {dtype}")
    if device is not None and t.device != device:
        raise invalid(name, f"on {t.device}", f"lie on {device}")
    return t


def number(name, value):
    if type(value) is float:
        return value
    if isinstance(value, (int, float)) or getattr(value, "ndim", None) == 0:
        return float(value)
    raise invalid(name, repr(value), "be a number")


def unpacked(name, t, count, axes):
    """The parts that lie side by side on the third axis from the last of a tensor of so many axes."""
    return tensor(name, t, (None,) * (axes - 3) + (count, None, None)).unbind(-3)


def window_of(window_size, keys):
    """(left, right) as whole numbers. FlashAttention takes an extent of all keys or more for an open side."""
    if type(window_size) is tuple and window_size == (-1, -1):
        return window_size
    try:
        left, right = (-1 if w is None else operator.index(w) for w in window_size)
    except (TypeError, ValueError):
        raise invalid("window_size", repr(window_size), "be two whole numbers, left and right") from None
    return (-1 if left < 0 or left >= keys else left), (-1 if right < 0 or right >= keys else right)


def keys_of(k):
    """Length of dense k; 0 where its shape is wrong, which attn tells."""
    return k.shape[1] if isinstance(k, torch.Tensor) and k.dim() == 4 else 0


def most(length, name):
    if length is None:
        raise invalid(name, "None", "be the longest sequence's length")
    return _problem.whole(name, length)


def splits_of(num_splits, most):
    """What attn takes as splits, where 0 leaves it to the plan."""
    found = _problem.whole("num_splits", num_splits)
    if not 0 <= found <= most:
        raise invalid("num_splits", found, f"be from 0 to {most}")
    return found


def slopes_of(alibi_slopes, q):
    """attn takes slopes in float32, for float64 tensors in that."""
    return None if alibi_slopes is None else tensor("alibi_slopes", alibi_slopes).to(torch.promote_types(q.dtype, torch.float32))


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
        refuse("rng_state", "is None, must be what forward returned where dropout_p > 0")
    return {"seed": state}


_OPTIONS = ("layout", "causal", "window", "scale", "softcap", "dropout", "deterministic", "splits")


def plain(keys, causal, window_size, arguments):
    """The keywords of _run.forward and _run.backward, which know no autograd, from those of attn.attention."""
    chosen = {name: arguments.pop(name) for name in _OPTIONS if name in arguments}
    options = _problem.options(causal=bool(causal), window=window_of(window_size, keys), **chosen)
    return {"options": options, **arguments}


def attend(q, k, v, *, keys, causal, window_size, wants_lse, **options):
    """(o, lse or None), differentiable in q, k and v through o alone, as in FlashAttention."""
    window = window_of(window_size, keys)
    if not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        for name, t in (("q", q), ("k", k), ("v", v)):
            tensor(name, t)
    try:
        found = attn.attention(q, k, v, causal=bool(causal), window=window, return_lse=wants_lse, **options)
    except Error as error:
        raise error.renamed(_THEIRS) from None
    return (found[0], found[1].detach()) if wants_lse else (found, None)


def absorb(q, k, qv, v, softmax_scale):
    """q.k + qv.v as one product over joined heads, with the scale that goes with it."""
    if qv is None:
        return q, k, softmax_scale
    for name, t in (("q", q), ("k", k), ("v", v)):
        tensor(name, t)
    tensor("qv", qv, (*q.shape[:-1], v.shape[-1]), q.dtype, q.device)
    tensor("v", v, (*k.shape[:-1], None), k.dtype, k.device)
    scale = (q.shape[-1] + qv.shape[-1]) ** -0.5 if softmax_scale is None else softmax_scale
    return torch.cat((q, qv), dim=-1), torch.cat((k, v), dim=-1), scale
