# SPDX-License-Identifier: Apache-2.0
"""Prepared calls: whatever differs between two calls makes two of them, and nothing that PyTorch tracks passes unseen."""
import threading

import pytest

torch = pytest.importorskip("torch")

import attn
from attn import _prepared

SHAPE = (2, 6, 2, 16)


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(1)
    _prepared._calls.clear()


def make(dtype=torch.float32, **more):
    return [torch.randn(SHAPE, **more).to(dtype) for _ in range(3)]


def bits(result):
    return [t.clone() for t in (result if isinstance(result, tuple) else (result,))]


OPTIONS = [
    {}, dict(layout="bhsd"), dict(causal=True), dict(causal=True, corner="top-left"), dict(window=(2, 1)), dict(window=(2, 0)),
    dict(window=(1, 1), global_tokens=1), dict(window=(1, 1), global_tokens=2), dict(scale=0.5), dict(scale=-0.5), dict(scale=0.0),
    dict(softcap=2.0), dict(softcap=3.0), dict(out_dtype=torch.float32), dict(deterministic=True), dict(tf32=True), dict(tile_q=16),
    dict(tile_kv=32), dict(dropout=0.5, seed=3), dict(dropout=0.25, seed=3), dict(dropout=0.5, seed=4), dict(dropout=0.5, seed=3, offset=1),
]


def extras():
    return [
        dict(mask=torch.ones(6, 6, dtype=torch.bool).tril()), dict(mask=torch.ones(6, 6, dtype=torch.bool).triu()),
        dict(mask=torch.ones(6, 6, dtype=torch.bool).triu().T), dict(bias=torch.randn(6, 6)), dict(bias=torch.randn(2, 1, 6, 6)),
        dict(bias=torch.randn(1, 6)), dict(alibi=torch.rand(2)), dict(alibi=torch.rand(2, 2)), dict(sink=torch.randn(2)),
        dict(bias=torch.randn(6, 6), sink=torch.randn(2), causal=True), dict(used_kv=torch.tensor([3, 6], dtype=torch.int32)),
        dict(used_q=torch.tensor([3, 6], dtype=torch.int32)), dict(used_kv=torch.tensor([6, 1], dtype=torch.int32)),
    ]  # fmt: skip


@pytest.mark.parametrize("gradients", [False, True])
def test_every_option_counts(gradients):
    """All calls twice, the second time among prepared ones in reverse, give what each gives with nothing prepared."""
    tensors = make(torch.bfloat16, requires_grad=False)
    for t in tensors:
        t.requires_grad_(gradients)
    dout, dlse = torch.randn(SHAPE).to(torch.bfloat16), torch.randn(2, 2, 6)

    def run(options, return_lse=True):
        more = {"deterministic": True, **options} if gradients else options
        o, lse = attn.attention(*tensors, return_lse=True, **more)
        if not gradients:
            return bits((o, lse, attn.attention(*tensors, **more)))
        dlse_ = dlse if lse.shape == dlse.shape else torch.ones_like(lse)
        return bits((o, lse, *torch.autograd.grad((o, lse), tensors, (dout.to(o.dtype), dlse_))))

    calls, alone = [*OPTIONS, *extras()], []
    for options in calls:
        _prepared._calls.clear()
        alone.append(run(options))
    for order in (1, -1):
        for options, want in list(zip(calls, alone))[::order]:
            for a, b in zip(run(options), want):
                assert a.dtype == b.dtype and torch.equal(a, b), options
    texts = {str([t.tolist() for t in want]) for want in alone[:13]}
    assert len(texts) == 12  # all but one: with equal lengths both corners are the same


def test_shapes_strides_and_types_count():
    q, k, v = make()
    first = attn.attention(q, k, v)
    views = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (q, k, v)]
    assert torch.equal(attn.attention(*views), first)
    assert attn.attention(*views).stride() == views[0].stride()
    assert attn.attention(q, k[:, :3], v[:, :3]).shape == q.shape
    assert attn.attention(q, k, v[..., :8]).shape == (2, 6, 2, 8)
    for dtype in (torch.float16, torch.bfloat16):
        assert attn.attention(*(t.to(dtype) for t in (q, k, v))).dtype == dtype
    with pytest.raises(attn.Error):
        attn.attention(q, k.half(), v)
    assert torch.equal(attn.attention(q, k, v), first)


def test_options_that_change_in_place():
    q, k, v = make()
    window, causal = torch.tensor([1, 0], device="cpu"), torch.tensor(False, device="cpu")
    for left in (1, 3):
        window[0] = left
        assert torch.equal(attn.attention(q, k, v, window=window), attn.attention(q, k, v, window=(left, 0)))
        ends = (torch.tensor(left), torch.tensor(0))
        assert torch.equal(attn.attention(q, k, v, window=ends), attn.attention(q, k, v, window=[left, 0]))
    for given in (False, True):
        causal.fill_(given)
        assert torch.equal(attn.attention(q, k, v, causal=causal), attn.attention(q, k, v, causal=given))


@pytest.mark.parametrize("field,value", [("tile_q", 1.5), ("tensor_cores", "on"), ("implementation", 3), ("scale", "1"), ("layout", ["bshd"])])
def test_options_of_wrong_types(field, value):
    for _ in range(2):
        with pytest.raises(attn.Error) as error:
            attn.attention(*make(), **{field: value})
        assert error.value.field == field and error.value.value and error.value.limit


def test_errors_come_again_after_good_calls():
    q, k, v = make()
    attn.attention(q, k, v)
    for _ in range(2):
        with pytest.raises(attn.Error) as error:
            attn.attention(q, k[..., :8], v)
        assert error.value.field == "k"
        with pytest.raises(attn.Error) as error:
            attn.attention(q, k, v, mask=torch.ones(2, 2, dtype=torch.bool))
        assert error.value.field == "mask"


def test_threads():
    inputs = [make() for _ in range(8)]
    wants = [attn.attention(*t, causal=True, return_lse=True) for t in inputs]
    bad = []

    def work(tensors, want):
        for _ in range(200):
            got = attn.attention(*tensors, causal=True, return_lse=True)
            if not all(torch.equal(a, b) for a, b in zip(got, want)):
                bad.append(tensors)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wants)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad


def test_many_shapes_are_not_kept():
    for n in range(1, 40):
        attn.attention(*(torch.randn(1, n, 1, 8) for _ in range(3)))
    assert len(_prepared._calls) <= _prepared._KEPT


def test_changed_inputs_are_noticed():
    q, k, v = make()
    q.requires_grad_()
    mask = torch.ones(6, 6, dtype=torch.bool)
    o = attn.attention(q, k, v, mask=mask)
    mask.zero_()
    with pytest.raises(RuntimeError, match="inplace|in-place"):
        o.sum().backward()


def test_second_derivatives_are_refused():
    q, k, v = (t.requires_grad_() for t in make())
    (g,) = torch.autograd.grad(attn.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="not offered"):
        g.sum().backward()


def test_forward_mode_is_refused():
    import torch.autograd.forward_ad as ad

    q, k, v = make()
    with ad.dual_level():
        with pytest.raises(attn.Error) as error:
            attn.attention(ad.make_dual(q, torch.ones_like(q)), k, v)
        assert error.value.field == "q"
        attn.attention(q, k, v)


def test_negated_views():
    q, k, v = make()
    negative = torch._neg_view(q)
    want = attn.attention(-q, k, v)
    for _ in range(2):
        assert torch.equal(attn.attention(negative, k, v), want)


def test_tracers_see_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v = make()
    run = lambda q, k, v: attn.attention(q, k, v, causal=True)
    want = run(q, k, v)
    graph = make_fx(run)(q, k, v)
    other = make()
    assert torch.equal(graph(*other), run(*other)) and torch.equal(run(q, k, v), want)
    assert any("attn" in str(node.target) for node in graph.graph.nodes)


def test_no_output_is_shared():
    q, k, v = make()
    a = attn.attention(q, k, v)
    kept = a.clone()
    attn.attention(k, q, v)
    assert torch.equal(a, kept)
