# SPDX-License-Identifier: Apache-2.0
"""What the field cases share: their numbers, their bounds, and the kinds of tensors they run through."""
import math

import conftest
import numpy as np
import pytest

import attn
from attn import _problem, _run

M = 0xFFFFFFFF
BOUND = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
SUM = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}


def x(tag, count):
    """Multiples of 1/64 in [-2, 2)."""
    h = (np.arange(count, dtype=np.uint64) * 0x9E3779B1 + tag * 0x85EBCA77 + 0x165667B1) & M
    h ^= h >> np.uint64(15)
    h = h * 0x2C1B3C6D & M
    h ^= h >> np.uint64(12)
    h = h * 0x297A2D39 & M
    h ^= h >> np.uint64(15)
    return ((h >> np.uint64(24)).astype(np.int64) - 128) / 64.0


def ten(tag, *shape):
    return x(tag, math.prod(shape)).reshape(shape)


class NumPy:
    """A kind of tensors: from arrays of float64, to them, and both passes without autograd."""

    def __init__(self, dtype):
        self.dtype = dtype

    def give(self, a):
        return np.asarray(a) if np.asarray(a).dtype.kind in "biu" else np.asarray(a).astype(self.dtype)

    def take(self, t):
        return np.asarray(t, np.float64)

    def wide(self):
        return type(self)("float32")


class Torch(NumPy):
    def give(self, a):
        import torch

        a = np.array(a)
        kind = None if a.dtype.kind in "biu" else getattr(torch, self.dtype)
        return torch.tensor(a, dtype=kind, device=conftest.DEVICE)

    def take(self, t):
        return t.detach().double().cpu().numpy()


MARGIN = 96


def guarded(kind, a):
    """a as a tensor of this kind in the middle of an allocation that is NaN all around."""
    a = np.asarray(a, np.float64)
    around = np.full(MARGIN, math.nan)
    return kind.give(np.concatenate((around, a.ravel(), around)))[MARGIN : MARGIN + a.size].reshape(a.shape)


def guards_stand(t):
    """Is all around the tensor, which guarded() made, still NaN?"""
    whole = t
    while not hasattr(t, "untyped_storage") and whole.base is not None:
        whole = whole.base
    if hasattr(t, "untyped_storage"):
        whole = t.new_empty(0).set_(t.untyped_storage()).isnan().cpu().numpy()
    else:
        whole = np.isnan(whole)
    return whole[:MARGIN].all() and whole[-MARGIN:].all()


def both(kind, q, k, v, dout=None, dlse=None, layout="bhsd", bias=None, **options):
    """o, lse and gradients as float64 arrays, all written over NaN; around inputs and outputs there is NaN too."""
    q, k, v, dout = (guarded(kind, t) if isinstance(t, np.ndarray) and t.dtype == np.float64 else t for t in (q, k, v, dout))
    named = {n: kind.give(t) if isinstance(t, np.ndarray) else t for n, t in
             (("mask", options.pop("mask", None)), ("bias", bias)) if t is not None}
    lengths = {n: options.pop(n) for n in ("cu_seqlens_q", "cu_seqlens_kv") if n in options}
    named.update({n: options.pop(n) for n in ("max_seqlen_q", "max_seqlen_kv") if n in options})
    named.update({n: kind.give(np.asarray(t, np.int32)) for n, t in lengths.items()})
    out = guarded(kind, np.full((*q.shape[:-1], v.shape[-1]), math.nan))
    o, lse = attn.attention(q, k, v, layout=layout, return_lse=True, out=out, **named, **options)
    assert o is out and guards_stand(o)
    found = {"o": kind.take(o), "lse": kind.take(lse)}
    if dout is not None:
        grads = {n: guarded(kind, np.full(tuple(t.shape), math.nan)) for n, t in (("dq", q), ("dk", k), ("dv", v))}
        wide = kind.wide()
        dlse = None if dlse is None else wide.give(dlse)
        g = _run.backward(dout, q, k, v, o, lse, options=_problem.options(layout=layout, **options), dlse=dlse, **named, **grads)
        assert all(guards_stand(t) for t in g.values())
        found.update({n: kind.take(t) for n, t in g.items()})
    return found


def near(kind, got, want, factor=1.0, low=None):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    bound = (BOUND[kind.dtype] if low is None else low) * factor
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(np.isinf(got), np.isinf(want))
    fine = np.isfinite(want)
    assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
    worst = np.abs(got[fine] - want[fine]) / np.maximum(1, np.abs(want[fine]))
    assert worst.size == 0 or worst.max() <= bound, (got, want)


def lse_near(kind, got, want):
    near(kind, got, want, low=1e-5 if kind.dtype == "float32" else 1e-4)


def sums(kind, found, factor=1.0, **wants):
    for name, want in wants.items():
        assert abs(np.abs(found[name]).sum() - want) <= factor * SUM[kind.dtype] * want, (name, np.abs(found[name]).sum(), want)


def kinds(arrays=True):
    """NumPy where there is nothing but a CPU, if arrays are wanted; PyTorch's tensors on the tests' device."""
    given = [NumPy(d) for d in ("float32", "float16")] if arrays and conftest.DEVICE == "cpu" else []
    try:
        import torch  # noqa: F401
    except ImportError:
        torch = None
    given += [Torch(d) for d in BOUND] if torch else []
    return pytest.mark.parametrize("kind", given, ids=lambda k: f"{type(k).__name__}-{k.dtype}")
