# SPDX-License-Identifier: Apache-2.0
"""torch.func: gradients and vmap as of plain operations; forward mode and second derivatives are refused by name."""
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import attn
import attn.flash_attn as fa2
import attn.flash_attn.flash_attn_interface as low

func = torch.func


def plain(q, k, v, causal=False, **_):
    s = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v)


def ours(q, k, v, **more):
    return attn.attention(q, k, v, tensor_cores=False, **more)


@pytest.fixture
def three():
    torch.manual_seed(1)
    return [torch.randn(2, 5, 2, 16) for _ in range(3)]


SINGLE = {
    "grad": lambda f, q, k, v: func.grad(lambda *t: f(*t).square().sum(), (0, 1, 2))(q, k, v),
    "causal": lambda f, q, k, v: func.grad(lambda *t: f(*t, causal=True).square().sum(), (0, 1, 2))(q, k, v),
    "vjp": lambda f, q, k, v: func.vjp(f, q, k, v)[1](v),
    "jacrev": lambda f, q, k, v: func.jacrev(lambda t: f(t, k, v).sum((0, 1, 2)))(q),
    "vmap": lambda f, q, k, v: torch.vmap(f)(*(torch.stack((t, t.flip(1), -t)) for t in (q, k, v))),
    "vmap over one": lambda f, q, k, v: torch.vmap(lambda t: f(q, t, v), in_dims=2, out_dims=1)(torch.stack((k, -k), 2)),
    "gradients of samples": lambda f, q, k, v: torch.vmap(func.grad(lambda t: f(t[None], k[:1], v[:1]).square().sum()))(q),
    "grad beside grad": lambda f, q, k, v: func.grad(lambda t: (t * func.grad(lambda u: f(u, k, v).square().sum())(q)).square().sum())(k),
    "functional call": lambda f, q, k, v: func.grad(lambda w: f(*(q @ w).chunk(3, -1)).square().sum())(torch.ones(16, 48) / 7),
}


@pytest.mark.parametrize("what", SINGLE)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_as_of_plain_operations(what, three):
    got, want = (SINGLE[what](f, *three) for f in (ours, plain))
    for a, b in zip(*((t if isinstance(t, tuple) else (t,)) for t in (got, want))):
        assert a.shape == b.shape and b.abs().max() > 1e-3 and (a - b).abs().max() <= 2e-5 * max(1, b.abs().max().item())


def test_lse_and_the_drop_in(three):
    q, k, v = three
    got = func.grad(lambda t: attn.attention(t, k, v, return_lse=True, tensor_cores=False)[1].sum())(q)
    want = func.grad(lambda t: (torch.einsum("bihd,bjhd->bhij", t, k) / 4).logsumexp(-1).sum())(q)
    assert (got - want).abs().max() < 1e-5
    got, want = (func.grad(lambda t: f(t, k, v).square().sum())(q) for f in (fa2.flash_attn_func, plain))
    assert (got - want).abs().max() < (5e-2 if q.is_cuda else 1e-5)


FORWARD = {
    "jvp": lambda q, k, v: func.jvp(lambda t: ours(t, k, v), (q,), (q,)),
    "jvp of v": lambda q, k, v: func.jvp(lambda t: ours(q, k, t), (v,), (v,)),
    "jacfwd": lambda q, k, v: func.jacfwd(lambda t: ours(t, k, v))(q),
    "hessian": lambda q, k, v: func.hessian(lambda t: ours(t, k, v).sum())(q),
}


@pytest.mark.parametrize("what", FORWARD)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_forward_mode_is_refused(what, three):
    with pytest.raises(attn.Error, match="forward-mode"):
        FORWARD[what](*three)


def test_second_derivatives_are_refused(three):
    q, k, v = three
    with pytest.raises(RuntimeError, match="not offered"):
        func.grad(lambda t: func.grad(lambda u: ours(u, k, v).square().sum())(t).sum())(q)


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"return_lse": True}])
def test_second_derivatives_by_autograd(options, three):
    """Of whatever a first one depends on, whether or not leaves may go unused."""
    q, k, v = (t.requires_grad_() for t in three)
    bias = torch.zeros(2, 2, 5, 5, requires_grad=True) if options.get("bias") else None
    for _ in range(2):
        found = attn.attention(q, k, v, bias=bias, return_lse="return_lse" in options)
        o = found[0] if isinstance(found, tuple) else found
        dout = torch.randn_like(o).requires_grad_()
        firsts = torch.autograd.grad(o, [q, v] + ([] if bias is None else [bias]), dout, create_graph=True)
        for g in firsts:
            for x in (q, k, v, dout):
                with pytest.raises(RuntimeError, match="not offered"):
                    torch.autograd.grad(g.sum(), x, allow_unused=True, retain_graph=True)


UNSEEN = {
    "vmap of a cache": lambda q, k, v: torch.vmap(lambda t: fa2.flash_attn_with_kvcache(t, k, v))(torch.stack((q, q))),
    "jvp of merge": lambda q, k, v: func.jvp(lambda t: attn.merge([(t, q.new_zeros(2, 2, 5))] * 2)[0], (q,), (q,)),
    "jvp of a drop-in's forward": lambda q, k, v: func.jvp(
        lambda t: low._flash_attn_forward(t, k, v, 0.0, None, True, -1, -1, 0.0, None, False)[0], (q,), (q,)),
    "grad of a drop-in's forward": lambda q, k, v: func.grad(
        lambda t: low._flash_attn_forward(t, k, v, 0.0, None, True, -1, -1, 0.0, None, False)[0].sum())(q),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_calls_that_are_not_transformed(what, three):
    with pytest.raises(attn.Error, match="torch.func|gradient"):
        UNSEEN[what](*three)


def test_nested_tensors_are_refused(three):
    q, k, v = three
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([q[0], q[1, :3]], layout=layout)
        for name, given in (("q", (nested, k, v)), ("k", (q, nested, v)), ("v", (q, k, nested))):
            with pytest.raises(attn.Error) as error:
                attn.attention(*given)
            assert error.value.field == name
        with pytest.raises(attn.Error) as error:
            attn.attention(q, k, v, bias=nested)
        assert error.value.field == "bias"
