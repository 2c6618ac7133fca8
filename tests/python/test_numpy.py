# SPDX-License-Identifier: Apache-2.0
"""With NumPy alone: values against float64, layouts, lengths, errors by name, cases from the field."""
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import attn
from attn import _library, _problem, _run
from fields import ten


def tensor(tag, *shape, dtype="float32"):
    return ten(tag, *shape).astype(dtype)


@pytest.mark.parametrize("dtype,bound", [("float32", 2e-5), ("float16", 2e-3)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_values(dtype, bound, causal, layout):
    shape = {"bshd": lambda s, h: (2, s, h, 24), "bhsd": lambda s, h: (2, h, s, 24)}[layout]
    q, k, v = tensor(1, *shape(17, 4), dtype=dtype), tensor(2, *shape(33, 2), dtype=dtype), tensor(3, *shape(33, 2), dtype=dtype)
    o, lse = attn.attention(q, k, v, layout=layout, causal=causal, return_lse=True)
    ref, ref_lse = attn.reference(q, k, v, layout=layout, causal=causal, return_lse=True)
    assert o.dtype == q.dtype and lse.dtype == np.float32 and ref.dtype == np.float64
    assert np.abs(o - ref).max() <= bound * max(1, np.abs(ref).max())
    assert np.abs(lse - ref_lse).max() <= 1e-4 * max(1, np.abs(ref_lse).max())


def test_c01_rows_that_see_nothing():
    q, k, v, do = tensor(1, 1, 2, 6, 8), tensor(2, 1, 2, 4, 8), tensor(3, 1, 2, 4, 8), tensor(4, 1, 2, 6, 8)
    o, lse = attn.attention(q, k, v, layout="bhsd", causal=True, return_lse=True)
    assert (o[:, :, :2] == 0).all() and (lse[:, :, :2] == -np.inf).all()
    np.testing.assert_allclose(lse[0, 0, 2:], [-0.0326277299, 0.989915213, 1.37812237, 1.82877612], atol=2e-5)
    np.testing.assert_allclose(np.abs(o).sum((0, 2, 3)), [20.3325969, 27.2271812], rtol=1e-5)
    options = _problem.options(layout="bhsd", causal=True)
    g = _run.backward(do, q, k, v, o, lse, options=options)
    np.testing.assert_allclose(np.abs(g["dq"]).sum((0, 2, 3)), [7.06926379, 6.64090122], rtol=1e-5)
    np.testing.assert_allclose(np.abs(g["dk"]).sum((0, 2, 3)), [5.57595705, 8.27738295], rtol=1e-5)
    np.testing.assert_allclose(np.abs(g["dv"]).sum((0, 2, 3)), [19.8250072, 17.6146177], rtol=1e-5)


@pytest.mark.parametrize("corner,want", [("bottom-right", [2.5, 3]), ("top-left", [1, 1.5])])
def test_c02_corner(corner, want):
    v = np.broadcast_to(np.arange(1, 6, dtype="f4")[None, :, None, None], (1, 5, 1, 8))
    o = attn.attention(np.zeros((1, 2, 1, 8), "f4"), np.zeros((1, 5, 1, 8), "f4"), v, causal=True, corner=corner)
    np.testing.assert_allclose(o[0, :, 0, 0], want)


@pytest.mark.parametrize("window,first,last", [((0, 0), 0, 299), ((63, 0), 0, 267.5), ((3, 2), 1, 297.5), ((0, 5), 2.5, 299)])
def test_c03_window(window, first, last):
    v = np.ascontiguousarray(np.broadcast_to(np.arange(300, dtype="f4")[None, :, None, None], (1, 300, 1, 8)))
    z = np.zeros((1, 300, 1, 8), "f4")
    o = attn.attention(z, z, v, window=window)
    np.testing.assert_allclose([o[0, 0, 0, 0], o[0, 299, 0, 0]], [first, last], rtol=1e-5)


def test_c04_packed():
    cu = lambda n: np.cumsum([0] + n).astype(np.int32)
    q, k, v = tensor(1, 8, 2, 16), tensor(2, 12, 1, 16), tensor(3, 12, 1, 16)
    more = dict(cu_seqlens_q=cu([0, 3, 0, 4, 1]), cu_seqlens_kv=cu([5, 4, 2, 0, 1]))
    o, lse = attn.attention(q, k, v, layout="thd", scale=0.25, return_lse=True, **more)
    np.testing.assert_allclose(np.abs(o).sum(), 92.8793406, rtol=1e-5)
    assert (o[3:7] == 0).all() and (lse[:, 3:7] == -np.inf).all()
    g = _run.backward(tensor(4, 8, 2, 16), q, k, v, o, lse, options=_problem.options(layout="thd", scale=0.25), **more)
    np.testing.assert_allclose([np.abs(g[n]).sum() for n in ("dq", "dk", "dv")], [47.4491185, 43.8574305, 68.1373631], rtol=1e-5)


def test_c05_rows_past_the_last_offset_are_zero():
    q, k, v = (tensor(tag, 12, 1, 16) for tag in (1, 2, 3))
    for t in (q, k, v):
        t[8:] = np.nan
    cu = np.array([0, 3, 8], np.int32)
    o = attn.attention(q, k, v, layout="thd", scale=0.25, cu_seqlens_q=cu, cu_seqlens_kv=cu, out=np.full_like(q, np.nan))
    np.testing.assert_allclose(np.abs(o[:8]).sum(), 81.2348581, rtol=1e-5)
    assert (o[8:] == 0).all()


@pytest.mark.parametrize("cu", [[1, 3, 8], [0, 5, 3], [0, 3, 99]])
def test_c05_malformed_offsets(cu):
    q = tensor(1, 12, 1, 16)
    out = np.full_like(q, 7)
    with pytest.raises(attn.Error) as error:
        attn.attention(q, q, q, layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=[0, 3, 8], max_seqlen_q=12, max_seqlen_kv=12, out=out)
    assert error.value.field.startswith("cu_seqlens_q")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_c06_hidden_has_no_influence(bad):
    q, k, v = (tensor(tag, 1, 2, 1, 4) for tag in (1, 2, 3))
    k[0, 1], v[0, 1] = bad, bad
    mask = np.array([[True, False], [True, False]])
    assert (attn.attention(q, k, v, mask=mask) == v[:, :1]).all()


def test_strides_do_not_change_bits():
    q, k, v = (tensor(tag, 2, 9, 3, 16) for tag in (1, 2, 3))
    want = attn.attention(q, k, v, causal=True)
    wide = np.full((2, 9, 3, 3, 16), np.nan, "f4")
    wide[:, :, 0], wide[:, :, 1], wide[:, :, 2] = q, k, v
    assert (attn.attention(wide[:, :, 0], wide[:, :, 1], wide[:, :, 2], causal=True) == want).all()
    turned = [np.ascontiguousarray(t.transpose(0, 2, 1, 3)) for t in (q, k, v)]
    assert (attn.attention(*turned, layout="bhsd", causal=True).transpose(0, 2, 1, 3) == want).all()
    double = np.repeat(q, 2, axis=3)[..., ::2]
    assert (attn.attention(double, k, v, causal=True) == want).all()


BAD = {
    "k": dict(k=np.zeros((1, 4, 2, 9), "f4")), "v": dict(v=np.zeros((1, 5, 2, 8), "f4")), "layout": dict(layout="sbhd"),
    "mask": dict(mask=np.zeros((4, 4), "f4")), "bias": dict(bias=np.zeros((3, 4), "f4")), "alibi": dict(alibi=np.zeros(3, "f4")),
    "sink": dict(sink=np.zeros(2, "f2")), "dropout": dict(dropout=1.5, seed=1), "seed": dict(dropout=0.5), "scale": dict(scale=math.nan),
    "softcap": dict(softcap=-1.0), "window": dict(window=3), "corner": dict(corner="left"), "tile_q": dict(tile_q=-1),
    "implementation": dict(implementation="none such"), "out": dict(out=np.zeros((1, 4, 2, 9), "f4")),
    "cu_seqlens_q": dict(cu_seqlens_q=[0, 4]), "q": dict(q=np.zeros((1, 4, 2, 8), "i4")),
}


@pytest.mark.parametrize("field", sorted(BAD))
def test_errors_name_the_argument(field):
    given = dict(zip("qkv", (tensor(tag, 1, 4, 2, 8) for tag in (1, 2, 3))))
    with pytest.raises((attn.Error, NotImplementedError)) as error:
        attn.attention(**{**given, **BAD[field]})
    assert error.value.field.split("[")[0].split(".")[0] == field and error.value.message


def test_structs_are_those_of_the_header():
    here = os.path.join(os.path.dirname(__file__), "..", "..")
    names = {"attn_problem": _library.Problem, "attn_args": _library.Args, "attn_config": _library.Config, "attn_hints": _library.Hints,
             "attn_error": _library.Status, "attn_layout": _library.Layout, "attn_band": _library.Band, "attn_merge_args": _library.MergeArgs}
    lines, want = [], []
    for name, kind in names.items():
        lines.append(f'printf("%zu ", sizeof({name}));')
        want.append(__import__("ctypes").sizeof(kind))
        for field in kind._fields_:
            lines.append(f'printf("%zu ", offsetof({name}, {field[0].rstrip("_")}));')
            want.append(getattr(kind, field[0]).offset)
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "a.c"), os.path.join(folder, "a")
        with open(source, "w") as file:
            file.write("#include <stdio.h>\n#include <attn/attn.h>\nint main(void) {" + "\n".join(lines) + "}")
        subprocess.run([os.environ.get("CC", "cc"), "-I", os.path.join(here, "include"), source, "-o", program], check=True)
        assert [int(n) for n in subprocess.run([program], capture_output=True, check=True, text=True).stdout.split()] == want


def test_numpy_alone_imports_no_torch():
    subprocess.run([sys.executable, "-c", "import attn, sys; assert 'torch' not in sys.modules"], check=True)


class Speaker:
    """Speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **more):
        return self.array.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Kind(Speaker):
    """An array of a library that follows the array API."""

    def __array_namespace__(self):
        return Kind

    @staticmethod
    def from_dlpack(array):
        return Kind(np.from_dlpack(array))


def test_whatever_speaks_dlpack():
    q, k, v = (tensor(tag, 1, 5, 2, 8) for tag in (1, 2, 3))
    mask, sink = np.tril(np.ones((5, 5), bool)), np.zeros(2, "f4")
    want = attn.attention(q, k, v, mask=mask, sink=sink, return_lse=True)
    for kind in (Speaker, Kind):
        found = attn.attention(kind(q), kind(k), kind(v), mask=kind(mask), sink=kind(sink), return_lse=True)
        exact = attn.reference(kind(q), kind(k), kind(v), mask=kind(mask), sink=kind(sink), return_lse=True)
        merged = attn.merge([(kind(want[0]), kind(want[1]))])
        for answer, bound in ((found, 0), (exact, 1e-5), (merged, 1e-6)):
            assert all(type(t) is (Kind if kind is Kind else np.ndarray) for t in answer)
            assert all(np.abs(getattr(t, "array", t) - w).max() <= bound for t, w in zip(answer, want))
    out = np.empty_like(q)
    assert attn.attention(Speaker(q), k, Kind(v), mask=mask, sink=sink, out=out) is out and (out == want[0]).all()


def test_arrays_that_are_not_what_they_seem():
    q, k, v = (tensor(tag, 1, 5, 2, 8) for tag in (1, 2, 3))
    want = attn.attention(q, k, v)
    fixed = q.copy()
    fixed.flags.writeable = False
    assert (attn.attention(fixed, k, v) == want).all() and (attn.attention(np.asfortranarray(q), k, v) == want).all()
    assert (attn.attention(q[:, ::-1].copy()[:, ::-1], k, v) == want).all()
    odd = np.frombuffer(b"x" + q.tobytes(), np.uint8)[1:].view("f4").reshape(q.shape)
    for field, more in {"q": dict(q=q.astype(">f4")), "k": dict(k=np.ma.masked_array(k)), "out": dict(out=fixed), "v": dict(v=odd)}.items():
        with pytest.raises(attn.Error) as error:
            attn.attention(**{"q": q, "k": k, "v": v, **more})
        assert error.value.field == field
    assert (fixed == q).all()


@pytest.mark.parametrize("dtype", [np.float32, "float32", np.dtype("f4")])
def test_out_dtype(dtype):
    q, k, v = (tensor(tag, 1, 5, 2, 8, dtype="float16") for tag in (1, 2, 3))
    o = attn.attention(q, k, v, out_dtype=dtype)
    assert o.dtype == np.float32 and np.abs(o - attn.reference(q, k, v)).max() < 2e-3
