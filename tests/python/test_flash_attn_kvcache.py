# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache of both drop-ins: what the cache holds afterwards and what attention over it gives."""

import math

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import attn.flash_attn as fa2
import attn.flash_attn_3 as fa3
from attn.flash_attn.layers.rotary import apply_rotary_emb

B, CAP, HQ, HK, D = 3, 12, 4, 2, 16


def plain(q, k, v, causal=False, window=(-1, -1), leftpad=0):
    """(o, lse) of (s, h, d) tensors in float64."""
    q, k, v = (t.double() for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    i = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    j = torch.arange(k.shape[0])[None]
    seen = (j >= leftpad) & ((j <= i) if causal else (j >= 0))
    seen = seen & ((j >= i - window[0]) if window[0] >= 0 else True) & ((j <= i + window[1]) if window[1] >= 0 else True)
    s = (torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf)
    p = s.softmax(-1).nan_to_num(0.0)
    return torch.einsum("hij,jhd->ihd", p, v), s.logsumexp(-1)


def make(new=2, rows=B):
    torch.manual_seed(5)
    cache = [torch.randn(rows, CAP, HK, D) for _ in range(2)]
    fresh = [torch.randn(B, new, HK, D) for _ in range(2)]
    return torch.randn(B, new, HQ, D), *cache, *fresh


def agree(a, b):
    assert a.shape == b.shape and (a.double() - b).abs().max() < 1e-5


@pytest.mark.parametrize("module", [fa2, fa3])
@pytest.mark.parametrize("causal,window", [(False, (-1, -1)), (True, (-1, -1)), (False, (3, 0))])
def test_append_then_attend(module, causal, window):
    q, kc, vc, k, v = make()
    before, lengths = kc.clone(), torch.tensor([0, 5, 10], dtype=torch.int32)
    for s in range(B):
        kc[s, lengths[s] :] = math.nan
        vc[s, lengths[s] :] = math.nan
    o, lse, *rest = module.flash_attn_with_kvcache(
        q, kc, vc, k, v, cache_seqlens=lengths, causal=causal, window_size=window, return_softmax_lse=True
    )
    assert len(rest) == (0 if module is fa2 else 2)
    for s, n in enumerate(lengths.tolist()):
        assert torch.equal(kc[s, :n], before[s, :n]) and torch.equal(kc[s, n : n + 2], k[s])
        assert torch.equal(vc[s, n : n + 2], v[s]) and torch.isnan(kc[s, n + 2 :]).all()
        want, want_lse = plain(q[s], kc[s, : n + 2], vc[s, : n + 2], causal, window)
        agree(o[s], want)
        agree(lse[s], want_lse)


def test_whole_cache_and_one_length():
    q, kc, vc, _, _ = make(1)
    agree(fa2.flash_attn_with_kvcache(q, kc, vc), torch.stack([plain(q[s], kc[s], vc[s])[0] for s in range(B)]))
    o = fa2.flash_attn_with_kvcache(q, kc, vc, cache_seqlens=7, num_splits=3)
    agree(o, torch.stack([plain(q[s], kc[s, :7], vc[s, :7])[0] for s in range(B)]))


def test_rows_and_left_padding():
    q, kc, vc, k, v = make(2, rows=5)
    rows, lengths = torch.tensor([4, 0, 2], dtype=torch.int32), torch.tensor([6, 3, 9], dtype=torch.int32)
    pads = torch.tensor([2, 0, 8], dtype=torch.int32)
    o = fa2.flash_attn_with_kvcache(
        q, kc, vc, k, v, cache_seqlens=lengths, cache_batch_idx=rows, cache_leftpad=pads, causal=True
    )
    for s in range(B):
        row, end = int(rows[s]), int(lengths[s]) + 2
        assert torch.equal(kc[row, end - 2 : end], k[s])
        agree(o[s], plain(q[s], kc[row, :end], vc[row, :end], True, leftpad=int(pads[s]))[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(causal, interleaved):
    q, kc, vc, k, v = make()
    angle, lengths = torch.randn(CAP, 4), torch.tensor([1, 5, 10], dtype=torch.int32)
    o = fa2.flash_attn_with_kvcache(
        q, kc, vc, k, v, angle.cos(), angle.sin(), lengths, causal=causal, rotary_interleaved=interleaved
    )
    turn = lambda x, at: apply_rotary_emb(x, angle.cos(), angle.sin(), interleaved, seqlen_offsets=at)
    turned_k = turn(k, lengths)
    turned_q = turn(q, lengths) if causal else torch.cat([turn(q[:, i : i + 1], lengths) for i in range(2)], 1)
    for s, n in enumerate(lengths.tolist()):
        assert torch.equal(kc[s, n : n + 2], turned_k[s])
        agree(o[s], plain(turned_q[s], kc[s, : n + 2], vc[s, : n + 2], causal)[0])


def test_ragged_queries_and_keys():
    _, kc, vc, _, _ = make()
    cu_q, cu_new = (torch.tensor(c, dtype=torch.int32) for c in ([0, 3, 4, 6], [0, 2, 2, 5]))
    lengths = torch.tensor([1, 6, 4], dtype=torch.int32)
    q, k, v = torch.randn(6, HQ, D), torch.randn(7, HK, D), torch.randn(7, HK, D)
    before = kc.clone()
    o, lse, _, _ = fa3.flash_attn_with_kvcache(
        q, kc, vc, k, v, cache_seqlens=lengths, cu_seqlens_q=cu_q, cu_seqlens_k_new=cu_new, max_seqlen_q=3,
        causal=True, return_softmax_lse=True,
    )  # fmt: skip
    assert lse.shape == (HQ, 6)
    for s, n in enumerate(lengths.tolist()):
        a, b = cu_new[s : s + 2].tolist()
        end, rows = n + b - a, slice(*cu_q[s : s + 2].tolist())
        assert torch.equal(kc[s, n:end], k[a:b]) and torch.equal(kc[s, end:], before[s, end:])
        want, want_lse = plain(q[rows], kc[s, :end], vc[s, :end], True)
        agree(o[rows], want)
        agree(lse[:, rows], want_lse)


def test_absorbed():
    q, kc, vc, _, _ = make(1)
    qv = torch.randn(B, 1, HQ, D)
    o = fa3.flash_attn_with_kvcache(q, kc, vc, qv=qv, cache_seqlens=9)
    join = [plain(torch.cat((q[s], qv[s]), -1), torch.cat((kc[s, :9], vc[s, :9]), -1), vc[s, :9])[0] for s in range(B)]
    agree(o, torch.stack(join))


@pytest.mark.parametrize(
    "change,field",
    [
        ({"cache_seqlens": None}, "cache_seqlens"),
        ({"cache_seqlens": 11}, "cache_seqlens"),
        ({"cache_batch_idx": torch.tensor([0, 1, 1])}, "cache_batch_idx"),
        ({"v": None}, "v"),
        ({"rotary_cos": torch.ones(CAP, 4)}, "rotary_sin"),
    ],
)
def test_bad_input_leaves_the_cache(change, field):
    q, kc, vc, k, v = make()
    if kc.is_cuda and field == "cache_batch_idx":
        pytest.skip("rows named twice are not looked for on a GPU")
    before = kc.clone()
    with pytest.raises(ValueError, match=field):
        fa2.flash_attn_with_kvcache(q, kc, vc, **{"k": k, "v": v, "cache_seqlens": 4, **change})
    assert torch.equal(kc, before)


def test_scheduler_metadata_is_taken():
    q, kc, vc, _, _ = make(1)
    lengths = torch.tensor([3, 4, 5], dtype=torch.int32)
    metadata = fa3.get_scheduler_metadata(B, 1, CAP, HQ, HK, D, lengths)
    assert metadata.dtype == torch.int32
    o = fa3.flash_attn_with_kvcache(q, kc, vc, cache_seqlens=lengths, scheduler_metadata=metadata)
    assert torch.equal(o, fa3.flash_attn_with_kvcache(q, kc, vc, cache_seqlens=lengths))
