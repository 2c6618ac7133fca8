# SPDX-License-Identifier: Apache-2.0
"""What only a GPU has: streams, devices, graphs, lengths and seeds in its memory, and no waiting for it."""
import conftest
import pytest

torch = pytest.importorskip("torch")
if conftest.DEVICE == "cpu" or not torch.cuda.is_available():
    pytest.skip("needs a GPU and ATTN_TEST_DEVICE=cuda", allow_module_level=True)

import attn

CU = [0, 3, 8, 8, 20]


def make(*shape, dtype=torch.bfloat16, device="cuda"):
    return [torch.randn(shape or (2, 64, 2, 64), dtype=dtype, device=device) for _ in range(3)]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(2)


def close(a, b, bound=2e-2):
    assert (a.double().cpu() - b.double().cpu()).abs().max() <= bound * max(1, b.abs().max().item())


def step(tensors, **options):
    leaves = [t.detach().requires_grad_() for t in tensors]
    o = attn.attention(*leaves, deterministic=True, **options)
    return (o.detach(), *torch.autograd.grad(o.float().square().sum(), leaves))


def test_against_the_reference():
    tensors = make()
    got = step(tensors, causal=True)
    leaves = [t.cpu().double().requires_grad_() for t in tensors]
    o = attn.reference(*leaves, causal=True)
    for a, b in zip(got, (o, *torch.autograd.grad(o.square().sum(), leaves))):
        close(a, b, 5e-2)


def test_nothing_waits():
    tensors = make()
    cu = torch.tensor(CU, dtype=torch.int32)
    rows = make(24, 2, 64)
    more = dict(layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=12, max_seqlen_kv=12)
    cases = [(tensors, {}), (tensors, dict(dropout=0.5)), (tensors, dict(dropout=0.5, seed=torch.tensor([3, 4]))), (rows, more)]
    for given, options in cases:
        step(given, **options)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for given, options in cases:
            step(given, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_current_stream():
    tensors = make(1, 2048, 16, 64)
    want = step(tensors)
    side = torch.cuda.Stream()
    for _ in range(5):
        late = [torch.zeros_like(t) for t in tensors]
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            for t, source in zip(late, tensors):
                t.copy_(source)
            got = step(late)
        side.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_graph_of_a_forward():
    q, k, v = make()
    attn.attention(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = attn.attention(q, k, v, causal=True, return_lse=True)
    for _ in range(3):
        for t in (q, k, v):
            t.copy_(torch.randn_like(t))
        graph.replay()
        want = attn.attention(q, k, v, causal=True, return_lse=True)
        assert torch.equal(o, want[0]) and torch.equal(lse, want[1])


def test_graph_of_a_training_step():
    tensors = [t.requires_grad_() for t in make()]
    dout = torch.randn_like(tensors[0])
    run = lambda: torch.autograd.grad(attn.attention(*tensors, causal=True, deterministic=True), tensors, dout)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grads = run()
    for _ in range(2):
        with torch.no_grad():
            for t in tensors:
                t.copy_(torch.randn_like(t))
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(grads, run()))


def test_graph_draws_new_seeds():
    q, k, v = make()
    attn.attention(q, k, v, dropout=0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = attn.attention(q, k, v, dropout=0.5)
    graph.replay()
    first = o.clone()
    graph.replay()
    assert not torch.equal(first, o)


def test_graph_with_lengths():
    cu = torch.tensor(CU, dtype=torch.int32)
    q, k, v = make(24, 2, 64)
    more = dict(layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=16, max_seqlen_kv=16)
    attn.attention(q, k, v, **more)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = attn.attention(q, k, v, **more)
    for lengths in (CU, [0, 16, 17, 20, 24], [0, 0, 0, 0, 5]):
        cu.copy_(torch.tensor(lengths))
        graph.replay()
        assert torch.equal(o, attn.attention(q, k, v, **more)) and (o[lengths[-1]:] == 0).all()
    cu.copy_(torch.tensor([0, 9, 3, 3, 3]))
    graph.replay()
    with pytest.raises(attn.Error) as error:
        attn.check_device()
    assert error.value.field.startswith("cu_seqlens")
    attn.check_device()


def test_rows_past_the_last_sequence():
    cu = torch.tensor([0, 700, 700, 1300], dtype=torch.int32)
    tensors = [t.requires_grad_() for t in make(3000, 2, 64)]
    more = dict(layout="thd", max_seqlen_q=700, max_seqlen_kv=700, causal=True, return_lse=True)
    want, lse = attn.attention(*tensors, cu_seqlens_q=cu.cpu(), cu_seqlens_kv=cu.cpu(), **more)
    left = [torch.full_like(tensors[0], float("nan")) for _ in range(6)] + [torch.full_like(lse, float("nan"))]
    torch.cuda.synchronize()
    del left  # what is made next lies here
    got, got_lse = attn.attention(*tensors, cu_seqlens_q=cu, cu_seqlens_kv=cu, **more)
    assert torch.equal(got, want) and torch.equal(got_lse, lse) and (got[1300:] == 0).all() and got_lse[:, 1300:].isneginf().all()
    for gradient in torch.autograd.grad(got, tensors, torch.ones_like(got)):
        assert (gradient[1300:] == 0).all() and gradient.isfinite().all()
    out = torch.full_like(got, 7)
    with torch.no_grad():
        attn.attention(*tensors, cu_seqlens_q=cu.flip(0), cu_seqlens_kv=cu, out=out, **more)
    with pytest.raises(attn.Error):
        attn.check_device()
    assert (out == 7).all()


def test_bad_lengths_on_the_device():
    cu, bad = torch.tensor([0, 3, 8], dtype=torch.int32), torch.tensor([0, 5, 3], dtype=torch.int32)
    q, k, v = make(8, 2, 64)
    more = dict(layout="thd", max_seqlen_q=8, max_seqlen_kv=8)
    attn.attention(q, k, v, cu_seqlens_q=bad, cu_seqlens_kv=cu, **more)
    for _ in range(3):
        with pytest.raises(attn.Error):
            torch.cuda.synchronize()
            attn.attention(q, k, v, cu_seqlens_q=bad, cu_seqlens_kv=cu, **more)
            attn.check_device()
    torch.cuda.synchronize()
    attn.check_device()
    host = attn.attention(q, k, v, cu_seqlens_q=cu.cpu(), cu_seqlens_kv=cu.cpu(), **more)
    assert torch.equal(attn.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_kv=cu, **more), host)


def test_seeds_of_the_device():
    q, k, v = make()
    host = attn.attention(q, k, v, dropout=0.3, seed=7, offset=9)
    assert torch.equal(attn.attention(q, k, v, dropout=0.3, seed=torch.tensor([7, 9])), host)
    assert torch.equal(attn.attention(q, k, v, dropout=0.3, seed=torch.tensor([7]), offset=9), host)


def test_workspace_is_given_back():
    tensors = make(1, 1024, 4, 64)
    step(tensors)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        step(tensors)
    assert torch.cuda.memory_allocated() == before


def test_compiled_by_inductor():
    tensors = [t.requires_grad_() for t in make()]
    run = lambda q, k, v: attn.attention(q * 2, k, v, causal=True, deterministic=True).sin()
    compiled = torch.compile(run, fullgraph=True)
    for a, b in zip(torch.autograd.grad(compiled(*tensors).sum(), tensors), torch.autograd.grad(run(*tensors).sum(), tensors)):
        close(a, b)


def test_inductor_with_changing_lengths():
    """One compilation serves all lengths, dropout, packed rows and what else stands in the graph."""
    run = lambda q, k, v: (attn.attention(q * 2, k, v, causal=True, deterministic=True).sin(), q.sum(1))
    compiled = torch.compile(run, fullgraph=True, dynamic=True)
    torch._dynamo.utils.counters.clear()
    for tokens in (40, 96, 33, 257):
        tensors = [t.requires_grad_() for t in make(2, tokens, 2, 64)]
        got, want = (f(*tensors) for f in (compiled, run))
        close(got[0], want[0])
        douts = [torch.randn_like(t) for t in want]
        for a, b in zip(torch.autograd.grad(got, tensors, douts), torch.autograd.grad(want, tensors, douts)):
            close(a, b)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    packed = torch.compile(lambda q, k, v, cu, longest: attn.attention(
        q, k, v, layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=longest, max_seqlen_kv=longest).sin(), fullgraph=True, dynamic=True)
    for lengths in ([0, 3, 8, 8, 20], [0, 16, 40], [0, 5, 6, 7, 90]):
        cu = torch.tensor(lengths, dtype=torch.int32)
        tensors, longest = make(lengths[-1] + 4, 2, 64), int(cu.diff().max())
        want = attn.attention(*tensors, layout="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=longest, max_seqlen_kv=longest)
        close(packed(*tensors, cu, longest), want.sin())


def test_inductor_draws_new_seeds():
    tensors = [t.requires_grad_() for t in make(dtype=torch.float32)]
    compiled = torch.compile(lambda q, k, v: attn.attention(q, k, v, dropout=0.5, tensor_cores=False) * 1.0, fullgraph=True)
    first, second = compiled(*tensors), compiled(*tensors)
    assert not torch.equal(first, second)
    dout = torch.randn_like(second)
    dv = torch.autograd.grad(second, tensors[2], dout)[0]
    assert abs((dv * tensors[2]).sum() - (dout * second).sum()) < 1e-2 * (dout * second).abs().sum() / 10


def test_reduced_overhead_graphs():
    """Inductor's own CUDA graphs hold the call."""
    compiled = torch.compile(lambda q, k, v: attn.attention(q, k, v, causal=True) + 1, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        tensors = make()
        close(compiled(*tensors).clone(), attn.attention(*tensors, causal=True) + 1)


def test_mixed_devices():
    q, k, v = make()
    for _ in range(2):
        with pytest.raises(attn.Error) as error:
            attn.attention(q, k.cpu(), v)
        assert error.value.field == "k"
    with pytest.raises(attn.Error) as error:
        attn.attention(q, k, v, mask=torch.ones(64, 64, dtype=torch.bool, device="cpu"))
    assert error.value.field == "mask"
