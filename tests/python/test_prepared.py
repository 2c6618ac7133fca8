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


def lengths(ends, rows, **more):
    cu = torch.tensor(ends, dtype=torch.int32, device="cpu")
    return [torch.randn(rows, 2, 16) for _ in range(3)], dict(layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, **more)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("what", ["plain", "dropout", "drawn dropout", "out", "packed", "packed and bounded", "used", "loose rows"])
def test_second_calls_are_quick(what, gradients, monkeypatch):
    """A second call of its kind does not look at its arguments again, and answers as the first did."""
    tensors, more = make(), {}
    if what.startswith("packed"):
        tensors, more = lengths([0, 4, 4, 9], 9, **({"max_seqlen_q": 6, "max_seqlen_kv": 5} if what.endswith("bounded") else {}))
    elif what == "loose rows":
        tensors, more = lengths([0, 4, 4, 9], 12)
    elif what == "used":
        more = dict(used_kv=torch.tensor([3, 6], dtype=torch.int32, device="cpu"))
    elif what.endswith("dropout"):
        more = dict(dropout=0.5, **({"seed": 5} if what == "dropout" else {}))
    elif what == "out":
        if gradients:
            pytest.skip("out is for calls without gradients")
        more = dict(out=torch.empty(SHAPE))
    for t in tensors:
        t.requires_grad_(gradients)

    def run():
        torch.manual_seed(2)
        o = attn.attention(*tensors, deterministic=True, **more)
        return bits((o.detach(), *(torch.autograd.grad(o.square().sum(), tensors) if gradients else ())))

    first = run()
    monkeypatch.setattr("attn._torch.attention", lambda *_: pytest.fail("took the long way"))
    for t in (first[0],) if what == "out" else ():
        more["out"].fill_(float("nan"))
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(first, run()))


def test_lengths_of_the_host_count():
    """The same kind of call with other lengths, longer ones and rows of no sequence."""
    q, k, v = (torch.randn(12, 2, 16).requires_grad_() for _ in range(3))
    for ends in ([0, 6, 12], [0, 6, 12], [0, 2, 12], [0, 6, 10], [0, 0, 0], [0, 12, 12], [0, 6, 12]):
        o, lse = attn.attention(q, k, v, return_lse=True, deterministic=True, **lengths(ends, 12)[1])
        grads = torch.autograd.grad(o.sum() + lse[:, : ends[-1]].sum(), (q, k, v))
        for a, b in zip(ends, ends[1:]):
            if a < b:
                want = attn.attention(*(t[None, a:b] for t in (q, k, v)), deterministic=True)[0]
                assert (o[a:b] - want).abs().max() < 1e-5
        assert (o[ends[-1] :] == 0).all() and (lse[:, ends[-1] :] == -float("inf")).all()
        assert all((g[ends[-1] :] == 0).all() and g.isfinite().all() for g in grads)
    for _ in range(2):
        with pytest.raises(attn.Error) as error:
            attn.attention(q, k, v, **lengths([0, 8, 6], 12)[1])
        assert error.value.field.startswith("cu_seqlens")


def test_lengths_of_any_integers():
    q, k, v = (torch.randn(9, 2, 16) for _ in range(3))
    want = attn.attention(q, k, v, **lengths([0, 4, 9], 9)[1])
    for cu in ([0, 4, 9], torch.tensor([0, 4, 9], device="cpu"), torch.tensor([0, 1, 4, 1, 9, 1], dtype=torch.int32, device="cpu")[::2]):
        for _ in range(2):
            assert torch.equal(attn.attention(q, k, v, layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu), want)


def test_out_is_written_and_noticed():
    q, k, v = make()
    want = attn.attention(q, k, v)
    for out in (torch.empty(SHAPE), torch.empty(2, 2, 6, 16).transpose(1, 2), torch.empty(SHAPE)):
        for _ in range(2):
            out.fill_(float("nan"))
            version = out._version
            assert attn.attention(q, k, v, out=out) is out and torch.equal(out, want) and out._version > version
    wide = torch.empty(SHAPE, dtype=torch.float32)
    attn.attention(*(t.bfloat16() for t in (q, k, v)), out=wide)
    assert (wide - want).abs().max() < 0.05
    kept = torch.ones(SHAPE).requires_grad_()
    product = kept * out
    attn.attention(q, k, v, out=out)
    with pytest.raises(RuntimeError, match="inplace|in-place"):
        product.sum().backward()
    with torch.inference_mode():
        attn.attention(q, k, v, out=torch.empty(SHAPE))
    for bad in (torch.empty(2, 6, 2, 8), torch.empty(SHAPE, dtype=torch.float16), [1.0]):
        for _ in range(2):
            with pytest.raises(attn.Error) as error:
                attn.attention(q, k, v, out=bad)
            assert error.value.field == "out"
    tensors, more = lengths([0, 4], 9)
    out = torch.full((9, 2, 16), float("nan"))
    for _ in range(2):
        attn.attention(*tensors, out=out.fill_(float("nan")), **more)
        assert (out[4:] == 0).all() and out.isfinite().all()


def test_saved_tensors_that_come_back_in_other_strides():
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in make())
    mask = torch.ones(6, 6, dtype=torch.bool).triu().T
    turned = torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous().clone(memory_format=torch.contiguous_format), lambda t: t)
    run = lambda: torch.autograd.grad(attn.attention(q, k, v, mask=mask, deterministic=True).square().sum(), (q, k, v))
    want = run()
    for _ in range(2):
        with turned:
            got = run()
        assert all(torch.equal(a, b) for a, b in zip(got, want)) and all(torch.equal(a, b) for a, b in zip(run(), want))


def test_first_call_without_autograd_at_all():
    """What is kept of a call in inference mode serves training."""
    tensors = make()
    _prepared._ones.clear()
    with torch.inference_mode():
        want = attn.attention(*tensors, return_lse=True, out_dtype=torch.float32)[0].clone()
    leaves = [t.detach().requires_grad_() for t in tensors]
    for _ in range(2):
        o, lse = attn.attention(*leaves, return_lse=True, out_dtype=torch.float32)
        assert torch.equal(o, want) and not lse.is_inference()
        (o.sum() + lse.sum()).backward()
