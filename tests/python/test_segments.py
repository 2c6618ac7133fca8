# SPDX-License-Identifier: Apache-2.0
"""Shards of sequences with global positions, and heads and sequences of a whole: together they are the whole."""
import numpy as np
import pytest
from fields import kinds, near, ten

import attn
from attn import _problem, _run

INF = float("inf")
LENGTHS = (13, 6)
ZIGZAG = [  # of two ranks: (first row, rows, position, sequence)
    [(0, 4, 0, 0), (4, 3, 10, 0), (7, 2, 0, 1), (9, 1, 5, 1)],
    [(0, 6, 4, 0), (6, 3, 2, 1)],
]


def shards(t):
    """The rows of each rank out of the packed whole."""
    starts = np.cumsum([0, *LENGTHS])
    return [np.concatenate([t[starts[s] + at : starts[s] + at + n] for _, n, at, s in rank]) for rank in ZIGZAG]


def whole(parts):
    """The reverse."""
    starts, made = np.cumsum([0, *LENGTHS]), np.full((sum(LENGTHS), *parts[0].shape[1:]), np.nan)
    for rank, part in zip(ZIGZAG, parts):
        for first, n, at, s in rank:
            made[starts[s] + at : starts[s] + at + n] = part[first : first + n]
    return made


def packing(kind):
    cu = kind.give(np.cumsum([0, *LENGTHS]).astype(np.int32))
    return dict(layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=13, max_seqlen_kv=13)


def segments(kind, r, c):
    lengths = kind.give(np.array(LENGTHS, np.int32))
    return dict(layout="thd", segments_q=kind.give(np.array(ZIGZAG[r])), segments_kv=kind.give(np.array(ZIGZAG[c])), lengths_q=lengths,
                lengths_kv=lengths, max_seqlen_q=13, max_seqlen_kv=13)


OPTIONS = [
    dict(causal=True), dict(window=(3, 1), global_tokens=1), dict(causal=True, softcap=4.0, scale=0.3), dict(dropout=0.3, seed=5, offset=2),
    dict(causal=True, bias=ten(5, 1, 2, 13, 13)), dict(mask=np.tri(13, dtype=bool)[::-1].copy()),
]  # fmt: skip


@kinds()
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o))
def test_ring_of_two(kind, options):
    """Rows of each rank over the keys of each, merged by lse, gradients added up: as one call over all rows."""
    q, k, v, dout = (ten(tag, 19, heads, 16) for tag, heads in ((1, 4), (2, 2), (3, 2), (4, 4)))
    options = dict(options)
    extra = {name: options.pop(name) for name in ("bias", "mask") if name in options}
    extra = {name: kind.give(t if name == "mask" else t[:, :1]) for name, t in extra.items()}
    give = lambda t: [kind.give(part) for part in shards(t)]
    want, want_lse = attn.attention(*(kind.give(t) for t in (q, k, v)), return_lse=True, **packing(kind), **options, **extra)
    qs, ks, vs, douts = map(give, (q, k, v, dout))
    parts = [[attn.attention(qs[r], ks[c], vs[c], return_lse=True, **segments(kind, r, c), **options, **extra) for c in range(2)] for r in range(2)]
    outs, lses = zip(*(attn.merge(pair, "thd") for pair in parts))
    near(kind, whole([kind.take(o) for o in outs]), kind.take(want), 2)
    near(kind, whole([kind.take(lse).T for lse in lses]), kind.take(want_lse).T, low=1e-4)
    plain = {name: options.pop(name) for name in ("seed", "offset") if name in options}
    known = lambda layout: dict(options=_problem.options(layout=layout, **options), **plain, **extra)
    more = {name: t for name, t in packing(kind).items() if name != "layout"}
    grads = _run.backward(*(kind.give(t) for t in (dout, q, k, v)), want, want_lse, **more, **known("thd"))
    sums = {"dq": [0, 0], "dk": [0, 0], "dv": [0, 0]}
    for r in range(2):
        for c in range(2):
            more = {name: t for name, t in segments(kind, r, c).items() if name != "layout"}
            found = _run.backward(douts[r], qs[r], ks[c], vs[c], outs[r], lses[r], **more, **known("thd"))
            for name, rank in (("dq", r), ("dk", c), ("dv", c)):
                sums[name][rank] = sums[name][rank] + kind.take(found[name])
    for name, parts in sums.items():
        near(kind, whole(parts), kind.take(grads[name]), 10)


@kinds()
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_with_an_axis_of_sequences(kind, layout):
    """Each sequence's rows in its own slot, some of them of nothing: 0 there, and -inf."""
    turn = (lambda t: t) if layout == "bshd" else (lambda t: t.swapaxes(1, 2))
    back = lambda t: turn(kind.take(t))
    q, k, v = (ten(tag, 2, 7, 2, 8) for tag in (1, 2, 3))
    wide = [np.full((2, 12, 2, 8), np.nan) for _ in range(3)]
    for made, t in zip(wide, (q, k, v)):
        made[:, 1:4], made[0, 6:10], made[1, 5:9] = t[:, :3], t[0, 3:], t[1, 3:]
    list_ = kind.give(np.array([(1, 3, 0, 0), (6, 4, 3, 0), (1, 3, 0, 1), (5, 4, 3, 1)]))
    more = dict(segments_q=list_, segments_kv=list_, lengths_q=[7, 7], lengths_kv=[7, 7], max_seqlen_q=7, max_seqlen_kv=7)
    more.update({name: kind.give(np.array(more[name], np.int32)) for name in ("lengths_q", "lengths_kv")})
    given = [kind.give(turn(t)) for t in wide]
    want, want_lse = attn.attention(*(kind.give(t) for t in (q, k, v)), causal=True, return_lse=True)
    out = kind.give(np.full_like(turn(wide[0]), np.nan))
    for o, lse in (attn.attention(*given, layout=layout, causal=True, return_lse=True, **more),
                   attn.attention(*given, layout=layout, causal=True, return_lse=True, out=out, **more)):
        o, lse, rows = back(o), kind.take(lse), [[1, 2, 3, 6, 7, 8, 9], [1, 2, 3, 5, 6, 7, 8]]
        for n in range(2):
            near(kind, o[n, rows[n]], kind.take(want)[n])
            near(kind, lse[n][:, rows[n]], kind.take(want_lse)[n], low=1e-4)
            others = [row for row in range(12) if row not in rows[n]]
            assert (o[n, others] == 0).all() and (lse[n][:, others] == -INF).all()


@kinds()
def test_heads_and_sequences_of_a_whole(kind):
    """A shard of heads and of sequences drops what the whole drops."""
    q, k, v = (kind.give(ten(tag, 3, 9, 4, 8)) for tag in (1, 2, 3))
    more = dict(dropout=0.4, seed=11, offset=3)
    want = kind.take(attn.attention(q, k, v, **more))
    for _ in range(2):
        for at in (0, 2):
            part = attn.attention(*(t[1:, :, at : at + 2] for t in (q, k, v)), head_first=at, batch_first=1, **more)
            assert np.array_equal(kind.take(part), want[1:, :, at : at + 2])
    assert not np.array_equal(kind.take(attn.attention(*(t[1:, :, 2:] for t in (q, k, v)), **more)), want[1:, :, 2:])


def pair(device, dtype=None):
    import torch

    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
    lists = [torch.tensor(rank, device=device) for rank in ZIGZAG]
    g = torch.Generator("cpu").manual_seed(3)
    tensors = [torch.randn(n, 2, 8, generator=g, dtype=torch.float64, device="cpu").to(device, dtype).requires_grad_() for n in (10, 9, 9)]
    return tensors, dict(layout="thd", segments_q=lists[0], segments_kv=lists[1], lengths_q=lengths, lengths_kv=lengths, max_seqlen_q=13,
                         max_seqlen_kv=13, causal=True)  # fmt: skip


def test_gradients():
    torch = pytest.importorskip("torch")
    tensors, more = pair("cpu", torch.float64)
    assert torch.autograd.gradcheck(lambda *t: attn.attention(*t, **more), tensors)
    o = attn.attention(*tensors, **more)
    assert (o[:4] == 0).all() and (o[7:9] == 0).all() and not (o[4:7] == 0).any()  # before any key of the other rank


def test_compiled():
    torch = pytest.importorskip("torch")
    tensors, more = pair(torch.get_default_device(), torch.float32)
    run = lambda *t: attn.attention(*t, deterministic=True, **more)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    want = run(*tensors)
    found = compiled(*tensors)
    assert torch.equal(found, want)
    for a, b in zip(torch.autograd.grad(found.sum(), tensors), torch.autograd.grad(want.sum(), tensors)):
        assert torch.equal(a, b)


def test_lists_may_change():
    """The same kind of call with another list."""
    torch = pytest.importorskip("torch")
    tensors, more = pair(torch.get_default_device(), torch.float32)
    with torch.no_grad():
        want = attn.attention(*tensors, **more)
        later = more["segments_kv"].clone()
        later[0, 2] = 0
        other = attn.attention(*tensors, **{**more, "segments_kv": later})
        assert torch.equal(attn.attention(*tensors, **more), want) and not torch.equal(other, want)


BAD = [
    ("segments_q", lambda m: m.update(segments_q=None)), ("lengths_kv", lambda m: m.update(lengths_kv=None)),
    ("segments_q", lambda m: m.update(segments_q=[[0, 1, 2]])), ("segments_kv", lambda m: m.update(segments_kv=[[0.5, 1, 2, 0]])),
    ("lengths_kv", lambda m: m.update(lengths_q=[13])), ("segments_q", lambda m: m.update(cu_seqlens_q=[0, 10])),
    ("segments_q", lambda m: m.update(segments_q=[(0, 11, 0, 0)])), ("segments_kv", lambda m: m.update(segments_kv=[(0, 4, 10, 0)])),
    ("segments_q", lambda m: m.update(segments_q=[(0, 4, 0, 2)])), ("segments_q", lambda m: m.update(segments_q=[(0, 4, 0, 0), (2, 4, 5, 0)])),
    ("lengths_q", lambda m: m.update(lengths_q=[-1, 6])), ("used_q", lambda m: m.update(used_q=[1, 1])), ("head_first", lambda m: m.update(head_first=0.5)),
]  # fmt: skip


@pytest.mark.parametrize("field,change", BAD, ids=[f"{n}-{field}" for n, (field, _) in enumerate(BAD)])
@pytest.mark.parametrize("torch_", [False, True])
def test_wrong_lists(field, change, torch_):
    q, k, v = (ten(tag, n, 2, 8).astype("f4") for tag, n in ((1, 10), (2, 9), (3, 9)))
    out = np.full_like(q, 7)
    if torch_:
        torch = pytest.importorskip("torch")
        q, k, v, out = (torch.tensor(t) for t in (q, k, v, out))
    more = dict(layout="thd", segments_q=ZIGZAG[0], segments_kv=ZIGZAG[1], lengths_q=LENGTHS, lengths_kv=LENGTHS, causal=True)
    change(more)
    for _ in range(2):
        with pytest.raises(attn.Error) as error:
            attn.attention(q, k, v, out=out, **more)
        assert error.value.field.split("[")[0].split(".")[0] == field, error.value
        assert (out == 7).all()
