# SPDX-License-Identifier: Apache-2.0
"""Attention over several sets of keys from attention over each: NumPy arrays and PyTorch tensors on the CPU by the
library, tensors on a GPU by PyTorch's operations in float32."""
import ctypes

import numpy as np

from . import _library as lib
from . import _problem, _tensors
from ._errors import invalid, raise_status
from ._tensors import adopt, view

_FLOATS = ("float32", "float16", "bfloat16", "float64")


def combine(o, lse):
    """(o, lse) in float32 (float64 stays) of torch tensors, parts on the first axis; o's axes are lse's and then dim."""
    import torch

    wide = torch.promote_types(o.dtype, torch.float32)
    o, lse = torch.where(torch.isneginf(lse).unsqueeze(-1), 0.0, o.to(wide)), lse.to(wide)
    top = lse.amax(0)
    base = torch.where(torch.isneginf(top), 0.0, top)
    weight = (lse - base).exp()
    total = weight.sum(0)
    share = torch.where(total > 0, weight / total, 0.0)
    return (share.unsqueeze(-1) * o).sum(0), base + total.log()


def _checked(parts, axes):
    os, lses = [], []
    for n, part in enumerate(parts):
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise invalid(f"parts[{n}]", type(part).__name__, "be a pair of o and lse")
        os.append(adopt(part[0], f"parts[{n}][0]"))
        lses.append(adopt(part[1], f"parts[{n}][1]"))
    if not os:
        raise invalid("parts", "empty", "have at least one")
    first = view(os[0], "parts[0][0]")
    rank = len([a for a in axes if a is not None])
    if len(first.shape) != rank:
        raise invalid("parts[0][0]", f"of {len(first.shape)} axes", f"have {rank} with this layout")
    if first.dtype not in _FLOATS:
        raise invalid("parts[0][0]", first.dtype, "be " + " or ".join(_FLOATS))
    rows = tuple(first.shape[a] for a in axes[:3] if a is not None)
    wide = view(lses[0], "parts[0][1]").dtype
    if wide not in ("float32", "float64"):
        raise invalid("parts[0][1]", wide, "be float32 or float64")
    for which, tensors, shape, kind in ((0, os, tuple(first.shape), first.dtype), (1, lses, rows, wide)):
        for n, t in enumerate(tensors):
            name, t = f"parts[{n}][{which}]", view(t, "")
            if tuple(t.shape) != shape:
                raise invalid(name, f"of shape {tuple(t.shape)}", f"be {shape}")
            if t.dtype != kind or t.device != first.device:
                raise invalid(name, f"{t.dtype} on {t.device}", f"be {kind} on {first.device}")
            if _tensors.is_torch(tensors[n]) != _tensors.is_torch(os[0]):
                raise invalid(name, f"of type {type(tensors[n]).__name__}", f"be of the first's, {type(os[0]).__name__}")
    return os, lses


def _contiguous(t):
    return t.contiguous() if _tensors.is_torch(t) else np.ascontiguousarray(t)


def _same_strides(tensors):
    """All as the first lies, contiguous copies of all where they differ."""
    return tensors if len({view(t, "").stride for t in tensors}) == 1 else [_contiguous(t) for t in tensors]


def _on_device(os, lses, axes):
    import torch

    order = [a for a in axes[:3] if a is not None]
    back = [0] * len(order)
    for n, a in enumerate(order):
        back[a] = n
    last = len(order)
    o, lse = combine(torch.stack([t.permute(*order, last) for t in os]), torch.stack(lses))
    return o.permute(*back, last).to(os[0].dtype).contiguous(), lse.to(lses[0].dtype)


def merge(parts, layout="bshd"):
    parts = list(parts)
    found = _merge(parts, layout)
    return _tensors.in_kind(found, parts[0][0])


def _merge(parts, layout):
    if layout not in _problem.LAYOUTS:
        raise invalid("layout", repr(layout), 'be "bshd", "bhsd" or "thd"')
    axes = _problem.LAYOUTS[layout]
    os, lses = _checked(parts, axes)
    if _tensors.is_torch(os[0]):
        import torch

        for n, (o, lse) in enumerate(zip(os, lses)):
            for which, t in enumerate((o, lse)):
                if torch.is_grad_enabled() and t.requires_grad:
                    raise invalid(f"parts[{n}][{which}]", "a tensor that requires a gradient", "not require one: merge has none")
        if os[0].device.type != "cpu":
            return _on_device(os, lses, axes)
        os, lses = ([t.resolve_neg() for t in tensors] for tensors in (os, lses))
    os, lses = _same_strides(os), [_contiguous(t) for t in lses]
    o, lse = (_tensors.empty(t, t.shape) for t in (os[0], lses[0]))
    vo, vl = view(os[0], "o"), view(lse, "lse")
    size = lambda n: 1 if axes[n] is None else vo.shape[axes[n]]
    whole = _problem.Options(layout=layout)
    addresses = lambda tensors: (ctypes.c_void_p * len(tensors))(*[view(t, "").address for t in tensors])
    args = lib.MergeArgs(ctypes.sizeof(lib.MergeArgs), size(0), size(1), size(2), size(3))
    args.o, args.result = _problem.layout(whole, "o", vo), _problem.layout(whole, "o", view(o, "o"))
    stride = (0,) * (3 - len(vl.stride)) + tuple(vl.stride)
    args.lse = lib.Layout(_tensors.DTYPES[vl.dtype], (ctypes.c_int64 * 4)(*stride, 0))
    at_o, at_lse, error = addresses(os), addresses(lses), lib.Status()
    args.parts, args.o_parts, args.lse_parts = len(os), ctypes.addressof(at_o), ctypes.addressof(at_lse)
    args.o_result, args.lse_result = view(o, "o").address, view(lse, "lse").address
    if lib.merge(args, error):
        raise_status(error)
    return o, lse
