# SPDX-License-Identifier: Apache-2.0
"""S_dmask: with the values, and what it says was dropped, the definition gives the output and the gradients."""
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import attn.flash_attn as fa2
import attn.flash_attn.flash_attn_interface as low
from test_flash_attn import FEATURES, close, make, plain, up

P = 0.3
BOUND = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def judged(q, k, v, o, shown, dtype, **feature):
    """Of one sequence: what dropped and kept say together with the definition's probabilities is o."""
    group = q.shape[1] // k.shape[1]
    sq, sk = q.shape[0], k.shape[0]
    assert shown.dtype == dtype and not shown[:, sq:].any() and not shown[:, :, sk:].any()
    shown = shown[:, :sq, :sk].double()
    columns = torch.eye(sk, dtype=torch.float64)[:, None].expand(sk, k.shape[1], sk)
    p = plain(q, k, columns, **feature)[0].transpose(0, 1)  # (h, sq, sk)
    top = p.amax(-1, keepdim=True)
    close(shown.abs(), torch.where(top > 0, p / top, 0.0), BOUND[dtype])
    want = torch.einsum("hij,jhd->ihd", torch.where(shown < 0, 0.0, p) / (1 - P), v.double().repeat_interleave(group, 1))
    close(o, want, BOUND[dtype])
    likely = p > 1e-3
    return (shown[likely] < 0).sum().item(), likely.sum().item()


@pytest.mark.parametrize("n", range(len(FEATURES)))
@pytest.mark.parametrize("dtype", BOUND)
def test_dense(n, dtype):
    feature = {**FEATURES[n], "alibi": FEATURES[n].get("alibi")}
    q, k, v = make(2, 131, 150, 4, 2, 32, dtype)
    named = {"causal": feature.get("causal", False), "window_size": feature.get("window", (-1, -1)), "softcap": feature.get("softcap", 0.0),
             "softmax_scale": feature.get("scale"), "alibi_slopes": feature["alibi"]}
    o, lse, shown = fa2.flash_attn_func(q, k, v, P, return_attn_probs=True, **named)
    assert shown.shape == (2, 4, 256, 256)
    close(lse, up(torch.stack([plain(a, b, c, **feature)[1] for a, b, c in zip(q, k, v)])), 1e-2 if dtype == torch.bfloat16 else 1e-5)
    dropped, some = map(sum, zip(*(judged(*t, dtype, **feature) for t in zip(q, k, v, o, shown))))
    assert abs(dropped / some - P) < 4 * (P / some) ** 0.5


def test_the_backward_drops_the_same():
    q, k, v = make(1, 40, 40, 2, 2, 16, grad=True)
    o, _, shown = fa2.flash_attn_func(q, k, v, P, causal=True, return_attn_probs=True)
    dout = torch.randn_like(o)
    got = torch.autograd.grad(o, (q, k, v), dout)
    s = torch.einsum("bihd,bjhd->bhij", q, k).masked_fill(torch.ones(40, 40, dtype=torch.bool).triu(1), -torch.inf) / 4
    kept = torch.where(shown[:, :, :40, :40] < 0, 0.0, s.softmax(-1)) / (1 - P)
    for a, b in zip(got, torch.autograd.grad(torch.einsum("bhij,bjhd->bihd", kept, v), (q, k, v), dout)):
        close(a, b, 2e-5)
    assert not shown.requires_grad


@pytest.mark.parametrize("causal", [False, True])
def test_packed(causal):
    lens_q, lens_k = (3, 0, 17, 5), (9, 4, 140, 0)
    q, k, v = (t[0] for t in make(1, sum(lens_q) + 2, sum(lens_k) + 1, 4, 2, 16))
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).to(torch.int32) for n in (lens_q, lens_k))
    o, _, shown = fa2.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 17, 140, P, causal=causal, return_attn_probs=True)
    assert shown.shape == (4, 4, 128, 256)
    for n, (a, b) in enumerate(zip(lens_q, lens_k)):
        rows, keys = slice(cu_q[n], cu_q[n] + a), slice(cu_k[n], cu_k[n] + b)
        if a and b:
            judged(q[rows], k[keys], v[keys], o[rows], shown[n], torch.float32, causal=causal)
        else:
            assert not shown[n].any()


def test_underscored_calls():
    q, k, v = make(1, 20, 20, 2, 2, 16)
    o, _, shown, state = low._flash_attn_forward(q, k, v, P, None, True, -1, -1, 0.0, None, True)
    dropped, _ = judged(q[0], k[0], v[0], o[0], shown[0], torch.float32, causal=True)
    assert dropped and state.shape == (2,)
    cu = torch.tensor([0, 8, 20], dtype=torch.int32)
    o, _, shown, _ = low._flash_attn_varlen_forward(q[0], k[0], v[0], cu, cu, 12, 12, P, None, True, return_softmax=True,
                                                    seqused_k=torch.tensor([8, 7], dtype=torch.int32))
    judged(q[0, :8], k[0, :8], v[0, :8], o[:8], shown[0], torch.float32, causal=True)
    judged(q[0, 8:], k[0, 8:15], v[0, 8:15], o[8:], shown[1], torch.float32, causal=True)
    assert low._flash_attn_forward(q, k, v, P, None, True, -1, -1, 0.0, None, False)[2].numel() == 0
    assert low._flash_attn_forward(q, k, v, 0.0, None, True, -1, -1, 0.0, None, True)[2].numel() == 0


def test_compiled():
    q, k, v = make(1, 20, 20, 2, 2, 16)
    run = torch.compile(lambda *t: fa2.flash_attn_func(*t, P, causal=True, return_attn_probs=True), backend="aot_eager")
    o, _, shown = run(q, k, v)
    judged(q[0], k[0], v[0], o[0], shown[0], torch.float32, causal=True)


def test_nothing_to_show():
    q, k, v = make(1, 3, 5, 2, 2, 16)
    assert fa2.flash_attn_func(q, k[:, :0], v[:, :0], P, return_attn_probs=True)[2].shape == (1, 2, 128, 0)
    assert fa2.flash_attn_func(q[:, :0], k, v, P, return_attn_probs=True)[2].shape == (1, 2, 0, 128)
    shown = fa2.flash_attn_varlen_func(q[0], k[0], v[0], [0, 1, 3], [0, 2, 5], 2, 3, P, return_attn_probs=True)[2]
    assert shown.shape == (2, 2, 128, 128) and shown[1, :, :2, :3].all() and not shown[0, :, 1:].any()
