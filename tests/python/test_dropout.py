# SPDX-License-Identifier: Apache-2.0
"""Dropout: whatever way a seed comes, backward drops what forward dropped.

The o of a call is linear in v while the kept probabilities stay: <dv, v> is <dout, o> only if both passes kept the same."""
import conftest
import pytest

torch = pytest.importorskip("torch")

import attn
from attn import _prepared, _torch

SEEDS = {
    "drawn": {}, "number": dict(seed=2**63 + 5), "number and offset": dict(seed=3, offset=9), "list": dict(seed=[3, 9]),
    "two words": dict(seed=torch.tensor([3, 9])), "one word": dict(seed=torch.tensor([3]), offset=9), "scalar": dict(seed=torch.tensor(3)),
    "small words": dict(seed=torch.tensor([3, 9], dtype=torch.int32)), "of the host": dict(seed=torch.tensor([3, 9], device="cpu")),
}
OTHERS = {
    "nothing": {}, "mask": dict(mask=torch.ones(24, 24, dtype=torch.bool).tril(2)), "bias": dict(bias=torch.zeros(24, 24)),
    "used": dict(used_kv=torch.tensor([24, 7], dtype=torch.int32)), "lengths of the host": dict(used_kv=torch.tensor([24, 7], device="cpu")),
}


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(4)
    _prepared._calls.clear()


def make():
    return [torch.randn(2, 24, 2, 16).requires_grad_() for _ in range(3)]


def same_kept(o, q, k, v):
    dout = torch.randn_like(o)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), dout)
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in (dq, dk, dv))
    want = (dout * o).sum().item()
    assert abs((dv * v).sum().item() - want) < 1e-3 * max(1.0, (dout * o).abs().sum().item() / 100)


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_backward_keeps_what_forward_kept(seed, others):
    tensors, results = make(), []
    more = {"dropout": 0.4, **SEEDS[seed], **OTHERS[others]}
    for _ in range(3):
        o = attn.attention(*tensors, **more)
        same_kept(o, *tensors)
        o, lse = attn.attention(*tensors, return_lse=True, **more)
        same_kept(o, *tensors)
        results.append(o.detach())
    assert torch.equal(results[0], results[1]) == torch.equal(results[1], results[2]) == (seed != "drawn")


@pytest.mark.parametrize("seed", SEEDS)
def test_compiled_and_exported(seed):
    tensors, more = make(), {"dropout": 0.4, **SEEDS[seed]}
    run = lambda q, k, v: attn.attention(q, k, v, **more)
    torch._dynamo.reset()  # its limit of recompilations counts what other tests of this process compiled
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        o = compiled(*tensors)
        same_kept(o, *tensors)
        assert seed == "drawn" or torch.equal(o, run(*tensors))

    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return run(q, k, v)

    exported = torch.export.export(Module(), tuple(tensors)).module()
    o = exported(*tensors)
    same_kept(o, *tensors)
    assert seed == "drawn" or torch.equal(o, run(*tensors))


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("form", ["words", "tensor"])
def test_the_same_seed_reaches_both_passes(form, others, monkeypatch):
    """Seeds of a device are tensors that nobody reads here: followed through a prepared call by what it is given."""
    given = (5, 6) if form == "words" else torch.tensor([5, 6], device="cpu")
    monkeypatch.setattr(_torch, "_seed", lambda *_: given)
    seen = []
    monkeypatch.setattr(_prepared._Call, "run", lambda self, *a: seen.append(a[6]))
    more = {name: t.cpu() for name, t in OTHERS[others].items()}
    q, k, v = (t.detach().cpu().requires_grad_() for t in make())
    for _ in range(2):
        attn.attention(q, k, v, dropout=0.5, **more).sum().backward()
    passes = [s if type(s) is tuple else s.tolist() for s in seen]
    assert [list(s) for s in passes] == [[5, 6]] * 4


def test_a_seed_that_changes_before_backward_is_noticed():
    if conftest.DEVICE == "cpu":
        pytest.skip("needs a GPU: seeds on the CPU are read at once")
    seed = torch.tensor([3, 9])
    o = attn.attention(*make(), dropout=0.4, seed=seed)
    seed += 1
    with pytest.raises(RuntimeError, match="inplace|in-place"):
        o.sum().backward()
