# SPDX-License-Identifier: Apache-2.0
"""The drop-ins' values against the definition in float64, their gradients against its autograd, their refusals."""

import math
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import attn.flash_attn as fa2
import attn.flash_attn.flash_attn_interface as low
import attn.flash_attn_3 as fa3
from attn.flash_attn.bert_padding import pad_input, unpad_input
from attn.flash_attn.layers.rotary import apply_rotary_emb

INF = math.inf


def plain(q, k, v, causal=False, window=(-1, -1), scale=None, softcap=0.0, alibi=None, leftpad=0):
    """(o, lse) of (s, h, d) tensors in float64; lse -inf where a row sees nothing."""
    q, k, v = (t.double() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    i = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    j = torch.arange(k.shape[0])[None, :]
    if alibi is not None:
        s = s - alibi.double()[:, None, None] * (i - j).abs()
    left, right = window
    seen = (j <= i if causal else j >= 0) & (j >= leftpad)
    seen = seen & ((j >= i - left) if left >= 0 else True) & ((j <= i + right) if right >= 0 else True)
    s = s.masked_fill(~seen, -INF)
    lse = s.logsumexp(-1)
    p = torch.where(seen, (s - torch.where(torch.isneginf(lse), 0.0, lse)[..., None]).exp(), 0.0)
    return torch.einsum("hij,jhd->ihd", p, v), lse


def batched(q, k, v, **options):
    parts = [plain(a, b, c, **options) for a, b, c in zip(q, k, v)]
    return torch.stack([o for o, _ in parts]), torch.stack([lse for _, lse in parts])


def make(b, sq, sk, h, hk, d, dtype=torch.float32, grad=False):
    g = torch.Generator("cpu").manual_seed(b * 1000 + sq * 10 + sk)
    shapes = ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, d))
    return [torch.randn(s, generator=g, device="cpu").to(torch.get_default_device(), dtype).requires_grad_(grad) for s in shapes]


def close(a, b, tolerance=1e-5):
    a, b = a.detach().double(), b.detach().double()
    assert a.shape == b.shape
    assert torch.equal(torch.isposinf(a), torch.isposinf(b)) and torch.equal(torch.isneginf(a), torch.isneginf(b))
    finite = torch.isfinite(b)
    assert torch.equal(torch.isfinite(a), finite)
    assert (a[finite] - b[finite]).abs().max() <= tolerance * max(1.0, b[finite].abs().max().item())


def up(lse):
    return lse.masked_fill(torch.isneginf(lse), INF)


FEATURES = [
    {},
    {"causal": True},
    {"window": (2, 1)},
    {"causal": True, "window": (3, 5), "softcap": 7.0},
    {"causal": True, "alibi": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    {"scale": 0.3},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("sizes", [(7, 11), (9, 4)])
def test_dense(features, sizes, dtype):
    q, k, v = make(2, *sizes, 4, 2, 16, dtype, grad=True)
    f = dict(features)
    o, lse, probs = fa2.flash_attn_func(
        q, k, v, 0.0, f.get("scale"), f.get("causal", False), f.get("window", (-1, -1)), f.get("softcap", 0.0),
        f.get("alibi"), return_attn_probs=True,
    )  # fmt: skip
    rough = 1e-5 if dtype == torch.float32 else 1.6e-2
    want, want_lse = batched(q, k, v, **f)
    close(o, want, rough)
    close(lse, up(want_lse), 1e-4)
    assert o.dtype == dtype and lse.dtype == torch.float32 and probs.numel() == 0 and not lse.requires_grad
    dout = torch.randn(o.shape, dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(o, (q, k, v), dout.to(dtype)), torch.autograd.grad(want, (q, k, v), dout)):
        close(a, b, 5 * rough)
    if "alibi" not in f:
        o3, lse3 = fa3.flash_attn_func(
            q, k, v, f.get("scale"), f.get("causal", False), window_size=f.get("window", (-1, -1)),
            softcap=f.get("softcap", 0.0), return_attn_probs=True,
        )  # fmt: skip
        assert torch.equal(o3, o)
        close(lse3, want_lse, 1e-4)


def test_empty_rows_and_no_keys():
    q, k, v = make(1, 6, 4, 2, 2, 8)
    lse2 = fa2.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)[1]
    o, lse3 = fa3.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (lse2[:, :, :2] == INF).all() and (lse3[:, :, :2] == -INF).all() and (o[:, :2] == 0).all()
    o, lse3 = fa3.flash_attn_func(q, k[:, :0], v[:, :0], return_attn_probs=True)
    assert (lse3 == INF).all() and (o == 0).all()


def test_backward_takes_empty_rows_of_either_sign():
    q, k, v = make(1, 6, 4, 2, 2, 8)
    out, lse, _, _ = low._flash_attn_forward(q, k, v, 0.0, None, True, -1, -1, 0.0, None, False)
    dout, found = torch.randn_like(out), []
    for given in (lse, lse.masked_fill(lse == INF, -INF)):
        grads = [torch.full_like(t, math.nan) for t in (q, k, v)]
        low._flash_attn_backward(dout, q, k, v, out, given, *grads, 0.0, None, True, -1, -1, 0.0, None, False)
        found.append(grads)
    assert (found[0][0][:, :2] == 0).all() and all(torch.equal(a, b) for a, b in zip(*found))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    for a, b in zip(found[0], torch.autograd.grad(batched(*leaves, causal=True)[0], leaves, dout.double())):
        close(a, b, 5e-5)


def test_wide_extents_are_open_and_tensors_are_numbers():
    q, k, v = make(1, 9, 4, 2, 2, 8)
    close(fa2.flash_attn_func(q, k, v, window_size=torch.tensor([4, 4])), batched(q, k, v)[0])


def test_packed_forms_agree():
    q, k, v = make(2, 8, 8, 2, 2, 16)
    want = fa2.flash_attn_func(q, k, v, causal=True)
    assert torch.equal(fa2.flash_attn_qkvpacked_func(torch.stack((q, k, v), 2), causal=True), want)
    assert torch.equal(fa2.flash_attn_kvpacked_func(q, torch.stack((k, v), 2), causal=True), want)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(torch.stack((q, k, v), 2), causal=True), want)
    q, k, v = make(2, 8, 8, 4, 2, 16)
    joined = torch.cat((q, k, v), 2)
    assert torch.equal(fa3.flash_attn_qkvpacked_func(joined, num_heads_q=4), fa3.flash_attn_func(q, k, v))


def test_varlen():
    lens_q, lens_k = (0, 3, 0, 4, 1), (5, 4, 2, 0, 1)
    cu = [torch.tensor((0,) + n).cumsum(0).to(torch.int32) for n in (lens_q, lens_k)]
    q, k, v = (t[0].detach().requires_grad_() for t in make(1, 10, 13, 4, 2, 16))
    o, lse, _ = fa2.flash_attn_varlen_func(q, k, v, *cu, 4, 5, causal=True, return_attn_probs=True)
    assert (o[8:] == 0).all()
    parts = [plain(q[cu[0][s] : cu[0][s + 1]], k[cu[1][s] : cu[1][s + 1]], v[cu[1][s] : cu[1][s + 1]], causal=True) for s in range(5)]
    want = torch.cat([p[0] for p in parts])
    close(o[:8], want)
    close(lse[:, :8], up(torch.cat([p[1] for p in parts], 1)))
    dout = torch.randn(o.shape, dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(o, (q, k, v), dout.float()), torch.autograd.grad(want, (q, k, v), dout[:8])):
        close(a, b, 5e-5)
    kv = torch.stack((k, v), 1)
    assert torch.equal(fa2.flash_attn_varlen_kvpacked_func(q, kv, *cu, 4, 5, causal=True), o)
    used = torch.tensor([0, 2, 0, 4, 1], dtype=torch.int32)
    o3 = fa3.flash_attn_varlen_func(q, k, v, *cu, 4, 5, seqused_q=used, causal=True)
    close(o3[:2], plain(q[:2], k[5:9], v[5:9], causal=True)[0])
    assert (o3[2] == 0).all()


def test_qv_joins_the_scores():
    q, k, v = make(1, 5, 6, 2, 1, 8)
    qv = torch.randn(1, 5, 2, 8)
    want = batched(torch.cat((q, qv), -1), torch.cat((k, v), -1), v)[0]
    close(fa3.flash_attn_func(q, k, v, qv=qv), want)


def test_dropout_replays():
    q, k, v = make(1, 16, 16, 2, 2, 16)
    common = (0.4, None, True, -1, -1, 0.0, None)
    torch.manual_seed(3)
    out, lse, _, state = low._flash_attn_forward(q, k, v, *common, False)
    again = low._flash_attn_forward(q, k, v, *common, False)
    assert state.shape == (2,) and not torch.equal(again[0], out) and torch.equal(again[1], lse)
    torch.manual_seed(3)
    assert torch.equal(low._flash_attn_forward(q, k, v, *common, False)[0], out)
    # The gradient of v is linear in the kept probabilities: <dv, v> = <dout, out> only if the same ones were kept.
    dout, grads = torch.randn_like(out), [torch.full_like(t, math.nan) for t in (q, k, v)]
    delta = low._flash_attn_backward(dout, q, k, v, out, lse, *grads, *common, False, state)
    assert abs((grads[2] * v).sum() - (dout * out).sum()) < 1e-4
    close(delta, (dout * out).sum(-1).transpose(1, 2))
    with pytest.raises(NotImplementedError, match="rng_state"):
        low._flash_attn_backward(dout, q, k, v, out, lse, *grads, *common, False)
    q.requires_grad_()
    fa2.flash_attn_func(q, k, v, 0.3).sum().backward()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("varlen", [False, True])
def test_ring_of_two(causal, varlen):
    """Ring attention in one process: each rank's rows meet each shard of keys, the parts are merged by lse."""
    q, k, v = make(1, 12, 12, 4, 2, 16)
    n, cu = 6, torch.tensor([0, 6], dtype=torch.int32)
    flat = (lambda t: t[0]) if varlen else (lambda t: t)

    def forward(a, b, c, diagonal):
        if varlen:
            out, lse, _, _ = low._flash_attn_varlen_forward(
                a[0], b[0], c[0], cu, cu, n, n, 0.0, None, diagonal, window_size_left=-1, window_size_right=-1
            )
            return out[None], lse[None]
        return low._flash_attn_forward(a, b, c, 0.0, None, diagonal, -1, -1, 0.0, None, False)[:2]

    shard = lambda t, r: t[:, r * n : (r + 1) * n].contiguous()
    whole, whole_lse = batched(q, k, v, causal=causal)
    dout = torch.randn_like(q)
    kept = [(r, c) for r in range(2) for c in range(2) if not causal or c <= r]
    outs, lses = [], []
    for r in range(2):
        out = lse = None
        for c in (c for row, c in kept if row == r):
            o_part, lse_part = forward(shard(q, r), shard(k, c), shard(v, c), causal and c == r)
            lse_part = lse_part.transpose(1, 2)[..., None]
            if out is None:
                out, lse = o_part, lse_part
            else:
                out = out - torch.sigmoid(lse_part - lse) * (out - o_part)
                lse = lse - torch.nn.functional.logsigmoid(lse - lse_part)
        outs.append(out)
        lses.append(lse[..., 0].transpose(1, 2))
    close(torch.cat(outs, 1), whole)
    close(torch.cat(lses, 2), whole_lse)

    sums = [torch.zeros_like(t) for t in (q, k, v)]
    for r, c in kept:
        a, b, d = shard(q, r), shard(k, c), shard(v, c)
        grads = [torch.full_like(t, math.nan) for t in (a, b, d)]
        low_lse = lses[r][0] if varlen else lses[r]
        head = [flat(t) for t in (shard(dout, r), a, b, d, outs[r])] + [low_lse] + [flat(t) for t in grads]
        tail = (0.0, None, causal and c == r, -1, -1, 0.0, None, False)
        if varlen:
            low._flash_attn_varlen_backward(*head, cu, cu, n, n, *tail)
        else:
            low._flash_attn_backward(*head, *tail)
        for total, part, at in zip(sums, grads, (r, c, c)):
            total[:, at * n : (at + 1) * n] += part
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    want = torch.autograd.grad(batched(*leaves, causal=causal)[0], leaves, dout.double())
    for a, b in zip(sums, want):
        close(a, b, 5e-5)


def test_combine():
    part = lambda *rows: torch.tensor(rows, dtype=torch.float32).view(2, 1, 3, 1, 1)
    o, lse = fa3.flash_attn_combine(part(1, 7, math.nan, 4, math.nan, math.nan), part(0, 3, -INF, math.log(2), -INF, -INF)[..., 0])
    close(o.flatten(), torch.tensor([3.0, 7.0, 0.0]))
    close(lse.flatten(), torch.tensor([math.log(3), 3.0, -INF]))
    q, k, v = make(2, 5, 9, 4, 2, 16)
    parts = [fa3.flash_attn_func(q, k[:, s], v[:, s], return_attn_probs=True) for s in (slice(0, 4), slice(4, 9))]
    o, lse = fa3.flash_attn_combine(torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts]).transpose(2, 3), out_dtype=torch.bfloat16)
    want, want_lse = batched(q, k, v)
    assert o.dtype == torch.bfloat16
    close(o, want, 1e-2)
    close(lse, want_lse.transpose(1, 2))


def test_padding_round_trip():
    x = torch.arange(24.0).view(2, 4, 3).requires_grad_()
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    packed, indices, cu, longest, used = unpad_input(x, mask)
    assert cu.tolist() == [0, 2, 5] and cu.dtype == torch.int32 and longest == 3 and used.tolist() == [2, 3]
    for given in (indices, indices.int()):
        assert torch.equal(pad_input(packed, given, 2, 4), x * mask[..., None])
    assert unpad_input(x, mask, unused_mask=torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]]))[2].tolist() == [0, 3, 6]
    packed.sum().backward()
    assert torch.equal(x.grad, mask[..., None].expand_as(x).float())


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(interleaved):
    angle = torch.randn(20, 4, dtype=torch.float64)
    x = torch.randn(2, 5, 3, 12, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([2, 9])
    y = apply_rotary_emb(x, angle.cos(), angle.sin(), interleaved, seqlen_offsets=offsets)
    first = slice(0, 8, 2) if interleaved else slice(0, 4)
    second = slice(1, 8, 2) if interleaved else slice(4, 8)
    turn = torch.stack([torch.polar(torch.ones_like(a), a) for a in (angle[2:7], angle[9:14])])[:, :, None]
    want = torch.complex(x[..., first], x[..., second]) * turn
    close(y[..., first], want.real, 1e-12)
    close(y[..., second], want.imag, 1e-12)
    assert torch.equal(y[..., 8:], x[..., 8:])
    y.pow(2).sum().backward()
    close(x.grad, 2 * x, 1e-12)
    packed = apply_rotary_emb(
        torch.cat((x[0, :3], x[1])), angle.cos(), angle.sin(), interleaved, seqlen_offsets=offsets,
        cu_seqlens=torch.tensor([0, 3, 8], dtype=torch.int32), max_seqlen=5,
    )  # fmt: skip
    assert torch.equal(packed, torch.cat((y[0, :3], y[1])))
    copy = x.detach().clone()
    assert apply_rotary_emb(copy, angle.cos(), angle.sin(), interleaved, True, offsets) is copy
    assert torch.equal(copy, y)


REFUSED = [
    (fa3, "flash_attn_func", {"attention_chunk": 4}, "attention_chunk"),
    (fa3, "flash_attn_func", {"sm_margin": 1}, "sm_margin"),
    (fa3, "flash_attn_func", {"q_descale": torch.ones(1, 2)}, "q_descale"),
    (fa2, "flash_attn_with_kvcache", {"block_table": torch.zeros(1, 1)}, "block_table"),
    (fa3, "flash_attn_with_kvcache", {"page_table": torch.zeros(1, 1)}, "page_table"),
]


@pytest.mark.parametrize("module,name,arguments,field", REFUSED)
def test_refusals_name_the_argument(module, name, arguments, field):
    with pytest.raises(NotImplementedError, match=field):
        getattr(module, name)(*make(1, 4, 4, 2, 2, 8), **arguments)


def test_install():
    script = """
import sys, types, attn
attn.install_as_flash_attn(); attn.install_as_flash_attn()
import flash_attn, flash_attn_interface
from flash_attn.bert_padding import unpad_input
from flash_attn.layers.rotary import apply_rotary_emb
from flash_attn.flash_attn_interface import _flash_attn_forward
import attn.flash_attn, attn.flash_attn_3
assert flash_attn is attn.flash_attn and flash_attn_interface is attn.flash_attn_3
import attn.flash_attn.layers.rotary as ours
assert apply_rotary_emb is ours.apply_rotary_emb
sys.modules["flash_attn"] = types.ModuleType("flash_attn")
try:
    attn.install_as_flash_attn()
except RuntimeError as error:
    assert "flash_attn" in str(error)
else:
    raise SystemExit("not refused")
attn.install_as_flash_attn(replace=True)
assert sys.modules["flash_attn"] is attn.flash_attn
"""
    subprocess.run([sys.executable, "-c", script], check=True)
