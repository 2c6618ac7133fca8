# SPDX-License-Identifier: Apache-2.0
"""With PyTorch, on the CPU or (ATTN_TEST_DEVICE) a GPU: values, gradients, types, strides, compile, export, errors."""
import pytest

torch = pytest.importorskip("torch")
from torch.autograd import gradcheck

import attn


def wide(*shape):
    return torch.randn(*shape, dtype=torch.float64, device="cpu", requires_grad=True)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


OPTIONS = {
    "plain": {}, "causal": dict(causal=True), "top-left": dict(causal=True, corner="top-left"), "window": dict(window=(1, 1)),
    "globals": dict(window=(0, 0), global_tokens=1), "softcap": dict(softcap=2.0), "scale": dict(scale=-0.3),
    "dropout": dict(dropout=0.4, seed=3, offset=9), "alibi": dict(alibi=torch.tensor([0.5, 0.25], dtype=torch.float64, device="cpu")),
    "mask": dict(mask=torch.ones(3, 5, dtype=torch.bool, device="cpu").tril(1)), "used": dict(used_kv=torch.tensor([4, 2], device="cpu")),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_gradcheck(name):
    q, k, v = wide(2, 3, 2, 4), wide(2, 5, 1, 4), wide(2, 5, 1, 3)
    assert gradcheck(lambda *t: attn.attention(*t, return_lse=True, **OPTIONS[name])[0], (q, k, v))


@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 5), (2, 2, 3, 5), (1, 1, 1, 5)])
def test_gradcheck_of_bias_sink_and_lse(shape):
    q, k, v = wide(2, 3, 2, 4), wide(2, 5, 2, 4), wide(2, 5, 2, 4)
    run = lambda q, k, v, b, s: attn.attention(q, k, v, bias=b, sink=s, return_lse=True)
    assert gradcheck(run, (q, k, v, wide(*shape), wide(2)))


def test_gradcheck_packed():
    q, k, v = wide(4, 2, 4), wide(6, 1, 4), wide(6, 1, 4)
    more = dict(layout="thd", causal=True, **{"cu_seqlens_" + n: torch.tensor(t, device="cpu") for n, t in (("q", [0, 1, 1, 4]), ("kv", [0, 3, 4, 6]))})
    assert gradcheck(lambda *t: attn.attention(*t, **more), (q, k, v))


@pytest.mark.parametrize("dtype,bound", [(torch.float32, 2e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)])
@pytest.mark.parametrize("view", ["plain", "turned", "packed", "last stride 2", "expanded"])
def test_values_and_gradients(dtype, bound, view):
    def make():
        if view == "turned":
            return torch.randn(2, 3, 9, 16).transpose(1, 2)
        if view == "packed":
            return torch.randn(2, 9, 3, 3, 16)[:, :, 1]
        if view == "last stride 2":
            return torch.randn(2, 9, 3, 32)[..., ::2]
        if view == "expanded":
            return torch.randn(1, 9, 1, 16).expand(2, 9, 3, 16)
        return torch.randn(2, 9, 3, 16)

    q, k, v = (make().to(dtype).detach().requires_grad_() for _ in range(3))
    o = attn.attention(q, k, v, causal=True)
    assert o.dtype == dtype
    o.sum().backward()
    copies = [t.detach().cpu().double().requires_grad_() for t in (q, k, v)]
    ref = attn.reference(*copies, causal=True)
    ref.sum().backward()
    assert (o.cpu() - ref).abs().max() <= bound * max(1, ref.abs().max())
    for t, c in zip((q, k, v), copies):
        assert t.grad.dtype == dtype
        assert (t.grad.cpu() - c.grad).abs().max() <= 5 * bound * max(1, c.grad.abs().max())


def test_against_sdpa():
    q, k, v = (torch.randn(2, 4, 33, 16) for _ in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    got = attn.attention(q, k, v, layout="bhsd", causal=True, corner="top-left")
    assert (got - want).abs().max() < 2e-5


def test_dropout_follows_the_generator():
    q, k, v = (torch.randn(1, 16, 2, 8) for _ in range(3))
    results = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        results.append(attn.attention(q, k, v, dropout=0.5))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    words = torch.tensor([7, 9])
    assert torch.equal(attn.attention(q, k, v, dropout=0.5, seed=words), attn.attention(q, k, v, dropout=0.5, seed=7, offset=9))


@pytest.mark.parametrize("options", [{}, dict(causal=True, window=(3, 0)), dict(layout="bhsd", softcap=5.0), dict(dropout=0.3, seed=4)])
def test_compile_gives_the_same_bits(options):
    tensors = [torch.randn(2, 8, 8, 16, requires_grad=True) for _ in range(3)]
    run = lambda *t: attn.attention(*t, return_lse=True, deterministic=True, **options)
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    grads = []
    for call in (run, compiled):
        o, lse = call(*tensors)
        grads.append((o, lse, *torch.autograd.grad(o.sum() + lse.sum(), tensors)))
    assert all(torch.equal(a, b) for a, b in zip(*grads))


def test_compile_with_shapes_that_change():
    run = lambda q, k, v: attn.attention(q * 2, k, v, causal=True) + 1
    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (5, 9, 17):
        tensors = [torch.randn(2, tokens, 2, 16, requires_grad=True) for _ in range(3)]
        for call in (run, compiled):
            found = call(*tensors)
            grads = torch.autograd.grad(found.sum(), tensors)
            want = (found, *grads) if call is run else want
        assert all((a - b).abs().max() < 1e-5 for a, b in zip((found, *grads), want))


def test_export():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return attn.attention(q, k, v, causal=True)

    tensors = [torch.randn(1, 8, 2, 16) for _ in range(3)]
    assert torch.equal(torch.export.export(Layer(), tuple(tensors)).module()(*tensors), Layer()(*tensors))


def test_operators_are_sound():
    from attn import _torch

    q, k, v = (torch.randn(1, 4, 2, 8, requires_grad=True) for _ in range(3))
    torch.library.opcheck(_torch._forward_op, (q, k, v, *(None,) * 13, 0, None, None, None, "bshd", True, "bottom-right", -1, -1, 0, None,
                                               0.0, 0.0, False, False, None, 0, 0, 0, 0, None, 0, 0))


def test_rows_past_the_last_offset():
    t = torch.randn(12, 1, 16)
    t[8:] = float("nan")
    t.requires_grad_()
    cu = torch.tensor([0, 3, 8], dtype=torch.int32)
    o = attn.attention(t, t, t, layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu)
    assert (o[8:] == 0).all()
    (g,) = torch.autograd.grad(o[:8].sum(), t)
    assert (g[8:] == 0).all() and g.isfinite().all()


@pytest.mark.parametrize("field,more", [
    ("alibi", dict(alibi=torch.ones(2, requires_grad=True))), ("out", dict(out=torch.empty(1, 4, 2, 8))),
    ("k", dict(k=torch.randn(1, 4, 2, 8, dtype=torch.float64))), ("v", dict(v=torch.randn(1, 4, 2, 8, device="meta"))),
    ("k", dict(k=[[1.0]])),
])
def test_errors_name_the_argument(field, more):
    given = {name: torch.randn(1, 4, 2, 8, requires_grad=True) for name in "qkv"}
    with pytest.raises(attn.Error) as error:
        attn.attention(**{**given, **more})
    assert error.value.field == field
