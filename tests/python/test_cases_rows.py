# SPDX-License-Identifier: Apache-2.0
"""Field cases C01 to C06, C14 and C15: rows that see nothing, corners, windows, packed rows, caches, a ring of shards."""
import math

import conftest
import numpy as np
import pytest
from fields import BOUND, SUM, Torch, both, guarded, kinds, lse_near, near, sums, ten

import attn

INF = math.inf


def inputs(b, h, sq, sk, d):
    return ten(1, b, h, sq, d), ten(2, b, h, sk, d), ten(3, b, h, sk, d), ten(4, b, h, sq, d)


def per_head(kind, found, **wants):
    for name, want in wants.items():
        got = np.abs(found[name]).sum((0, 2, 3))
        np.testing.assert_allclose(got, want, rtol=(1 if name == "o" else 5) * SUM[kind.dtype])


@kinds()
def test_c01a_rows_that_see_nothing(kind):
    found = both(kind, *inputs(1, 2, 6, 4, 8), causal=True)
    assert (found["o"][:, :, :2] == 0).all() and (found["lse"][:, :, :2] == -INF).all() and (found["dq"][:, :, :2] == 0).all()
    lse_near(kind, found["lse"][0, :, 2:], [[-0.0326277299, 0.989915213, 1.37812237, 1.82877612], [0.274573568, 2.022631, 0.558874267, 2.34251578]])
    near(kind, found["o"][0, 0, 2], [-1, 0.765625, 0.328125, -1.015625, 1.15625, -0.4375, -0.375, 1.109375])
    near(kind, found["o"][0, 0, 5, :4], [0.868809, -0.21019966, 1.10251087, 0.368319288])
    near(kind, found["dk"][0, 0, 3, :4], [0.0537515541, 0.0179171847, -0.0179171847, -0.0824190496], 5)
    per_head(kind, found, o=[20.3325969, 27.2271812], dq=[7.06926379, 6.64090122], dk=[5.57595705, 8.27738295], dv=[19.8250072, 17.6146177])


@kinds()
@pytest.mark.parametrize("way", ["boolean", "bytes", "bias"])
def test_c01b_hidden_corner(kind, way):
    seen = np.zeros((1, 1, 8, 8), bool)
    seen[..., :4, :4] = True
    more = {"boolean": dict(mask=seen), "bytes": dict(mask=seen.astype(np.uint8)), "bias": dict(bias=np.where(seen, 0, -INF))}[way]
    found = both(kind, *inputs(1, 1, 8, 8, 8), **more)
    lse_near(kind, found["lse"][0, 0], [1.58155541, 2.75546039, 1.33719563, 1.60205898, -INF, -INF, -INF, -INF])
    near(kind, found["o"][0, 0, 0, :4], [-0.27764218, 0.865755781, 0.588077775, -0.257861944])
    sums(kind, found, o=15.3993212)
    sums(kind, found, 5, dq=10.6877856, dk=10.1331621, dv=15.6397824)
    assert all((found[name][:, :, 4:] == 0).all() for name in ("o", "dq", "dk", "dv"))


@kinds()
@pytest.mark.parametrize("d", [1, 8])
def test_c01c_band(kind, d):
    s = 640
    i, j = np.arange(s)[:, None], np.arange(s)[None]
    bias = np.where((j <= i) & (j >= i - 9), 0, -INF)[None, None]
    v = np.zeros((1, 1, s, d))
    v[..., 0] = np.arange(s)
    found = both(kind, np.zeros((1, 1, s, d)), np.zeros((1, 1, s, d)), v, np.ones((1, 1, s, d)), bias=bias)
    assert all(np.isfinite(t).all() for t in found.values())
    lse_near(kind, found["lse"][0, 0], np.log(np.minimum(np.arange(s) + 1, 10)))
    if kind.dtype != "bfloat16":
        want = np.arange(s) - np.minimum(np.arange(s), 9) / 2
        near(kind, found["o"][0, 0, :, 0], want)


CORNERS = [
    (2, 5, [2.5, 3], [math.log(4), math.log(5)], [1, 1.5], [0, math.log(2)]),
    (5, 2, [0, 0, 0, 1, 1.5], [-INF, -INF, -INF, 0, math.log(2)], [1, 1.5, 1.5, 1.5, 1.5], [0] + [math.log(2)] * 4),
    (1, 7, [4], [math.log(7)], [1], [0]),
    (3, 128, [63.5, 64, 64.5], [math.log(126), math.log(127), math.log(128)], [1, 1.5, 2], [0, math.log(2), math.log(3)]),
]  # fmt: skip


@kinds()
@pytest.mark.parametrize("d", [8, 64])
@pytest.mark.parametrize("sq,sk,o,lse,top_o,top_lse", CORNERS)
def test_c02_corners(kind, d, sq, sk, o, lse, top_o, top_lse):
    v = np.ones((1, 1, sk, d)) * np.arange(1, sk + 1)[:, None]
    for corner, want, want_lse, ahead in (("bottom-right", o, lse, sk - sq), ("top-left", top_o, top_lse, 0)):
        found = both(kind, np.zeros((1, 1, sq, d)), np.zeros((1, 1, sk, d)), v, np.ones((1, 1, sq, d)), causal=True, corner=corner)
        near(kind, found["o"][0, 0], np.broadcast_to(np.array(want)[:, None], (sq, d)))
        lse_near(kind, found["lse"][0, 0], want_lse)
        seen = np.arange(sk)[None] <= np.arange(sq)[:, None] + ahead
        shares = (seen / np.maximum(seen.sum(1), 1)[:, None]).sum(0)
        near(kind, found["dv"][0, 0], np.broadcast_to(shares[:, None], (sk, d)), 5)


@kinds()
def test_c02_packed(kind):
    cu_q, cu_kv = np.cumsum([0, 2, 5, 1]), np.cumsum([0, 5, 2, 7])
    v = np.concatenate([np.arange(1, n + 1) for n in (5, 2, 7)])[:, None, None] * np.ones((14, 1, 8))
    for corner, at in (("bottom-right", 2), ("top-left", 4)):
        found = both(kind, np.zeros((8, 1, 8)), np.zeros((14, 1, 8)), v, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, causal=True, corner=corner)
        near(kind, found["o"][:, 0, 0], sum((case[at] for case in CORNERS[:3]), []))
        lse_near(kind, found["lse"][0], sum((case[at + 1] for case in CORNERS[:3]), []))


WINDOWS = """
0 0 0 64 128 299 0 44850
1 0 0 63.5 127.5 298.5 0.693147181 44700.5
63 0 0 32.5 96.5 267.5 4.15888308 36408
64 0 0 32 96 267 4.17438727 36290
127 0 0 32 64.5 235.5 4.85203026 29864
128 0 0 32 64 235 4.8598124 29778
298 0 0 32 64 150 5.70044357 22425.5
299 0 0 32 64 149.5 5.70378247 22425
300 0 0 32 64 149.5 5.70378247 22425
-1 0 0 32 64 149.5 5.70378247 22425
3 2 1 63.5 127.5 297.5 1.38629436 44701.5
0 5 2.5 66.5 130.5 299 0 45592.5
-1 -1 149.5 149.5 149.5 149.5 5.70378247 44850
"""


def counted(kind, sq, sk, window):
    """q = 0 and v_j = j: o is the mean of what a row sees, exp(lse) its number."""
    v = np.ones((1, 1, sk, 8)) * np.arange(sk)[:, None]
    found = both(kind, np.zeros((1, 1, sq, 8)), np.zeros((1, 1, sk, 8)), v, np.ones((1, 1, sq, 8)), window=window)
    assert (found["o"][..., :1] == found["o"]).all() and np.isfinite(found["dv"]).all()
    return found["o"][0, 0, :, 0], found["lse"][0, 0]


@kinds()
@pytest.mark.parametrize("row", WINDOWS.strip().splitlines(), ids=lambda r: ",".join(r.split()[:2]))
def test_c03a_windows(kind, row):
    left, right, *want = row.split()
    *means, lse, total = map(float, want)
    o, got = counted(kind, 300, 300, (int(left), int(right)))
    lse_near(kind, got[299], lse)
    if kind.dtype != "bfloat16":
        near(kind, o[[0, 64, 128, 299]], means)
        assert abs(o.sum() - total) <= 1e-3 * total


@kinds()
def test_c03b_c03c_windows(kind):
    o, lse = counted(kind, 129, 61, (32, 64))
    assert (o[:4] == 0).all() and (lse[:4] == -INF).all()
    lse_near(kind, lse[[4, 5, 64, 100, 101, 128]], [0, math.log(2), 4.11087386, 4.11087386, 4.09434456, 3.49650756])
    near(kind, o[[4, 5, 64, 100, 101, 128]], [0, 0.5, 30, 30, 30.5, 44])
    o, lse = counted(kind, 1, 256, (128, 0))
    lse_near(kind, lse, [math.log(129)])
    if kind.dtype != "bfloat16":
        near(kind, o, [191])


def packed(kind, lens_q, lens_kv, hq, hk, d, **options):
    tq, tk = sum(lens_q), sum(lens_kv)
    return both(kind, ten(1, tq, hq, d), ten(2, tk, hk, d), ten(3, tk, hk, d), ten(4, tq, hq, d), layout="thd",
                cu_seqlens_q=np.cumsum([0, *lens_q]), cu_seqlens_kv=np.cumsum([0, *lens_kv]), **options)


@kinds()
@pytest.mark.parametrize("causal,want,lse0,lse1", [
    (False, (92.8793406, 47.4491185, 43.8574305, 68.1373631), (1.2400567, 1.66519418, 0.90841029), (0.783703502, 3.35437747, 2.43631209)),
    (True, (104.123434, 33.233569, 31.8680836, 74.719313), (0.399639992, 1.36325327, 0.90841029), (0.388158133, 3.00219986, 2.43631209)),
])  # fmt: skip
def test_c04_packed_and_empty(kind, causal, want, lse0, lse1):
    found = packed(kind, (0, 3, 0, 4, 1), (5, 4, 2, 0, 1), 2, 1, 16, scale=0.25, causal=causal)
    sums(kind, found, o=want[0])
    sums(kind, found, 5, dq=want[1], dk=want[2], dv=want[3])
    lse_near(kind, found["lse"], [[*lse0, *[-INF] * 4, -2.78442383], [*lse1, *[-INF] * 4, 0.957580566]])
    assert (found["o"][3:7] == 0).all() and (found["dq"][3:7] == 0).all()
    for name in ("dk", "dv"):
        assert (found[name][:5] == 0).all() and (found[name][9:11] == 0).all()
    assert np.abs(found["dk"][11]).max() < 5 * BOUND[kind.dtype]


@kinds()
def test_c04_nothing_at_all(kind):
    for lens_q, lens_kv in (((0, 0), (3, 2)), ((3, 2), (0, 0)), ((0, 0), (0, 0)), ((), ())):
        found = packed(kind, lens_q, lens_kv, 2, 1, 16)
        assert all((t == (-INF if name == "lse" else 0)).all() for name, t in found.items())
    for b, sq, sk in ((0, 4, 4), (2, 0, 4), (2, 4, 0)):
        found = both(kind, *inputs(b, 2, sq, sk, 8))
        assert all((t == (-INF if name == "lse" else 0)).all() for name, t in found.items())
        assert found["o"].shape == (b, 2, sq, 8) and found["dk"].shape == (b, 2, sk, 8)
    with pytest.raises(attn.Error, match="head size 0") as error:
        both(kind, *inputs(1, 1, 4, 4, 0))
    assert error.value.field == "q"


@kinds()
def test_c04_decode_shortcut(kind):
    """One row a sequence, some of none: the values of the batch without the empty ones."""
    found = packed(kind, (0, 1, 0, 1), (0, 3, 0, 5), 9, 3, 64, max_seqlen_q=1, causal=True)
    want = packed(kind, (1, 1), (3, 5), 9, 3, 64, causal=True)
    for name in want:
        near(kind, found[name], want[name], 5)


def five(kind, cu_q=(0, 3, 8), cu_kv=(0, 3, 8), **options):
    rows = [ten(tag, 12, 1, 16) for tag in (1, 2, 3, 4)]
    for t in rows:
        t[8:] = math.nan
    return both(kind, *rows, layout="thd", scale=0.25, cu_seqlens_q=np.array(cu_q), cu_seqlens_kv=np.array(cu_kv), **options)


@kinds()
def test_c05_longer_buffers(kind):
    found = five(kind)
    sums(kind, found, o=81.2348581)
    sums(kind, found, 5, dq=49.3937322, dk=58.9389979, dv=76.8184193)
    assert all((found[name][8:] == 0).all() for name in ("o", "dq", "dk", "dv")) and (found["lse"][:, 8:] == -INF).all()


@kinds()
@pytest.mark.parametrize("cu,bound", [((1, 3, 8), 12), ((0, 5, 3), 12), ((0, 3, 13), 12), ((0, 3, 8), 4), ((0, -1, 8), 12)])
def test_c05_malformed_lengths(kind, cu, bound):
    """Refused by name, without a write; lengths on a GPU are told of after the caller waits."""
    for side in ("q", "kv"):
        q = kind.give(ten(1, 12, 1, 16))
        out = kind.give(np.full((12, 1, 16), 7.0))
        lengths = {"cu_seqlens_q": (0, 3, 8), "cu_seqlens_kv": (0, 3, 8), "cu_seqlens_" + side: cu}
        lengths = {name: kind.give(np.array(t, np.int32)) for name, t in lengths.items()}
        bounds = {"max_seqlen_q": 12, "max_seqlen_kv": 12, "max_seqlen_" + side: bound}
        with pytest.raises(attn.Error) as error:
            attn.attention(q, q, q, layout="thd", **lengths, **bounds, out=out)
            attn.check_device()
        assert error.value.field.startswith("cu_seqlens_" + side)
        if conftest.DEVICE == "cpu" or not isinstance(kind, Torch):
            assert (kind.take(out) == 7).all()


@kinds()
@pytest.mark.parametrize("bad", [math.nan, INF, -INF, 1e30])
@pytest.mark.parametrize("where", ["k", "v", "both"])
def test_c06a_hidden_has_no_influence(kind, bad, where):
    q, k, v, dout = inputs(1, 1, 2, 2, 4)
    for name, t in (("k", k), ("v", v)):
        if where in (name, "both"):
            t[0, 0, 1] = bad if kind.dtype != "float16" or not np.isfinite(bad) else 6e4
    found = both(kind, q, k, v, dout, mask=np.array([[True, False], [True, False]]))
    assert (found["o"] == kind.take(kind.give(v[:, :, :1]))).all()
    lse_near(kind, found["lse"][0, 0], 0.5 * (q[0, 0] @ k[0, 0, 0]))
    assert (found["dk"][0, 0, 1] == 0).all() and (found["dv"][0, 0, 1] == 0).all()
    assert all(np.isfinite(t).all() for t in found.values())


@kinds()
@pytest.mark.parametrize("sk", [1, 9, 63, 65, 127, 129, 503])
def test_c06b_views_in_the_midst_of_nan(kind, sk):
    sq = 1001 if sk == 503 else 130
    v = np.ones((1, 1, sk, 64)) * (np.arange(sk) % 64)[:, None]
    rows = np.full((1, 1, 1024, 64), math.nan)
    wide = [rows.copy(), rows.copy()]
    wide[0][:, :, 200 : 200 + sk], wide[1][:, :, 200 : 200 + sk] = 0, v
    k, v_view = (guarded(kind, t)[:, :, 200 : 200 + sk] for t in wide)
    found = both(kind, np.zeros((1, 1, sq, 64)), k, v_view, np.ones((1, 1, sq, 64)))
    assert all(np.isfinite(t).all() for t in found.values())
    lse_near(kind, found["lse"], np.full((1, 1, sq), math.log(sk)))
    near(kind, found["o"], np.full((1, 1, sq, 64), v[0, 0, :, 0].mean()))
    near(kind, found["dv"], np.full((1, 1, sk, 64), sq / sk), 5)
    if sk == 503:
        near(kind, found["o"][0, 0, 1000, 0], 31.0079523)


@kinds()
def test_c06c_visible_nan_shows(kind):
    q, k, v, dout = inputs(1, 2, 5, 7, 8)
    want = both(kind, q, k, v, dout)
    q[0, 0, 0, 0] = math.nan
    found = both(kind, q, k, v, dout)
    assert np.isnan(found["o"][0, 0, 0]).all() and np.isnan(found["lse"][0, 0, 0])
    found["o"][0, 0, 0], want["o"][0, 0, 0] = 0, 0
    near(kind, found["o"], want["o"])


LENS = (1, 16, 17, 50)
CACHE_SUMS = [60.84375, 28.8477321, 29.9944427, 17.7192215]
CACHE_LSE = [
    [-0.05078125, 0.0283813477, 0.76373291, -0.118835449], [3.58456801, 3.82237156, 4.15980844, 4.55429483],
    [4.42324449, 3.31164648, 4.22970085, 3.91108618], [4.82644722, 5.18230382, 4.54214199, 4.62084425],
]  # fmt: skip
CACHE_O3 = [
    [-0.671875, 0.34375, -1.453125, -0.046875], [0.267245071, -0.241567986, -0.617951508, 0.142292911],
    [0.0497008371, -0.919320128, 0.0502717546, 0.11102748], [0.0692216697, 0.199598519, -0.521816754, -0.0380604988],
]  # fmt: skip


def cache(capacity):
    """q (4, 1, 4, 16), k and v (4, capacity, 2, 16), NaN past the used lengths."""
    q, k, v = ten(1, 4, 4, 1, 16).swapaxes(1, 2), ten(2, 4, 50, 2, 16), ten(3, 4, 50, 2, 16)
    wide = [np.full((4, capacity, 2, 16), math.nan, np.float32) for _ in range(2)]
    for n, length in enumerate(LENS):
        wide[0][n, :length], wide[1][n, :length] = k[n, :length], v[n, :length]
    return q, *wide


def is_c14(kind, o, lse):
    lse_near(kind, lse[:, :, 0], CACHE_LSE)
    near(kind, o[:, 0, 3, :4], CACHE_O3)
    np.testing.assert_allclose(np.abs(o).sum((1, 2, 3)), CACHE_SUMS, rtol=SUM[kind.dtype])


@kinds()
@pytest.mark.parametrize("splits", [1, 2, 7])
def test_c14_used_lengths(kind, splits):
    q, k, v = (kind.give(t) for t in cache(50))
    used = kind.give(np.array(LENS, np.int32))
    is_c14(kind, *map(kind.take, attn.attention(q, k, v, scale=0.25, used_kv=used, splits=splits, return_lse=True)))


@kinds(arrays=False)
@pytest.mark.parametrize("capacity,splits", [(50, 1), (50, 2), (50, 7), (300, 7)])
@pytest.mark.parametrize("release", [2, 3])
def test_c14_caches(kind, capacity, splits, release):
    in_a_cache(kind, capacity, splits, release)


def test_c14_long_cache():
    pytest.importorskip("torch")
    in_a_cache(Torch("float16"), 262144, 7, 2)


def in_a_cache(kind, capacity, splits, release):
    import attn.flash_attn as fa2
    import attn.flash_attn_3 as fa3

    module = fa2 if release == 2 else fa3
    q, k, v = (kind.give(t) for t in cache(capacity))
    used = kind.give(np.array(LENS, np.int32))
    run = lambda q, keys, values, used, **more: module.flash_attn_with_kvcache(
        q, keys, values, cache_seqlens=used, softmax_scale=0.25, num_splits=splits, causal=True, return_softmax_lse=True, **more)[:2]
    is_c14(kind, *map(kind.take, run(q, k, v, used)))
    one = [run(q[n : n + 1], k[n : n + 1], v[n : n + 1], length) for n, length in enumerate(LENS)]  # the length as a number
    is_c14(kind, *(np.concatenate([kind.take(part[n]) for part in one]) for n in (0, 1)))
    # Written by the call instead: the last key of each sequence arrives as a new one.
    last = [t[range(4), [n - 1 for n in LENS]][:, None].clone() for t in (k, v)]
    for t in (k, v):
        t[range(4), [n - 1 for n in LENS]] = math.nan
    is_c14(kind, *map(kind.take, run(q, k, v, used - 1, k=last[0], v=last[1])))
    # Pages are not offered: refused by name, before a write.
    table = {"block_table" if release == 2 else "page_table": kind.give(np.zeros((4, 1), np.int32))}
    before = k.clone()
    with pytest.raises(NotImplementedError, match=next(iter(table))) as error:
        module.flash_attn_with_kvcache(q, k, v, *last, cache_seqlens=used - 1, **table)
    assert error.value.field == next(iter(table)) and error.value.value and error.value.limit
    assert ((k == before) | k.isnan()).all()


RINGS = {
    (7, False): (56.8594043, 40.9975078, 49.0860741, 53.6677515), (7, True): (64.8327013, 44.1801369, 47.9155775, 55.6484832),
    (10, False): (68.3709698, 66.2435088, 70.5900122, 65.6295424), (10, True): (83.2136063, 62.701764, 77.0105263, 80.2215883),
}  # fmt: skip
SHARDS = [(4, 3), (7, 0), (0, 7), (3, 0, 4), (1,) * 7, (3, 3, 2, 2), (10, 0, 0, 0)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shards", SHARDS, ids=str)
@pytest.mark.parametrize("way", ["dense", "packed"])
def test_c15_ring(dtype, causal, shards, way):
    """Ring attention on the low-level calls, each rank's shard on a device of its own where there are several."""
    torch = pytest.importorskip("torch")
    import attn.flash_attn.flash_attn_interface as low

    kind, s, n = Torch(dtype), sum(shards), len(shards)
    places = [f"cuda:{r % torch.cuda.device_count()}" if conftest.DEVICE != "cpu" else "cpu" for r in range(n)]
    q, k, v, dout = ([part.to(place) for part, place in zip(kind.give(ten(tag, 1, 2, s, 8)).transpose(1, 2).split(shards, 1), places)]
                     for tag in (1, 2, 3, 4))
    pairs = [[c for c in range(n) if not causal or c <= r] for r in range(n)]

    def offsets(r, c):
        return [torch.tensor([0, shards[i]], dtype=torch.int32, device=places[r]) for i in (r, c)] + [shards[r], shards[c]]

    def forward(r, c):
        there = [t[c].to(places[r]) for t in (k, v)]
        if way == "dense":
            o, lse, _, _ = low._flash_attn_forward(q[r], *there, 0.0, None, causal and c == r, -1, -1, 0.0, None, False)
        else:
            o, lse, _, _ = low._flash_attn_varlen_forward(q[r][0], *(t[0] for t in there), *offsets(r, c), 0.0, None, causal and c == r)
            o, lse = o[None], lse[None]
        return o.float(), lse.masked_fill(lse == INF, -INF)  # FlashAttention-2's sign of an empty row

    outs, lses = zip(*(attn.merge([forward(r, c) for c in pairs[r]]) for r in range(n)))
    sums_of = [[torch.zeros_like(t, dtype=torch.float32) for t in parts] for parts in (q, k, v)]
    for r in range(n):
        for c in pairs[r]:
            there = [t[c].to(places[r]) for t in (k, v)]
            grads = [torch.full_like(t, math.nan) for t in (q[r], *there)]
            head, tail = (dout[r], q[r], *there, outs[r].to(q[r].dtype)), (0.0, None, causal and c == r, -1, -1, 0.0, None, True)
            if way == "dense":
                low._flash_attn_backward(*head, lses[r], *grads, *tail)
            else:
                low._flash_attn_varlen_backward(*(t[0] for t in head), lses[r][0], *(g[0] for g in grads), *offsets(r, c), *tail)
            for total, grad, at in zip(sums_of, grads, (r, c, c)):
                total[at] += grad.to(total[at].device)
    whole = lambda parts: np.concatenate([kind.take(t) for t in parts], 1).swapaxes(1, 2)
    found = {"o": whole(outs), "dq": whole(sums_of[0]), "dk": whole(sums_of[1]), "dv": whole(sums_of[2])}
    assert all(t.shape[1] == length for t, length in zip(outs, shards))
    want = RINGS[s, causal]
    sums(kind, found, o=want[0])
    sums(kind, found, 5, dq=want[1], dk=want[2], dv=want[3])
    lse = np.concatenate([t.cpu().numpy() for t in lses], 2)
    if (s, causal) == (7, False):
        lse_near(kind, lse[0, :, 6], [1.61622171, 3.36242725])
        near(kind, found["o"][0, 1, 6, :4], [1.21928923, 0.182740464, 0.627682051, -0.0519745925])
        near(kind, found["dk"][0, 1, 0, :4], [1.35656225, -0.345783876, -0.302904252, 0.182026747], 5)
    if (s, causal) == (7, True):
        near(kind, found["dk"][0, 1, 0, :4], [1.37822817, -0.751923732, -0.632324475, 0.292871367], 5)
    if (s, causal) == (10, True):
        lse_near(kind, lse[0, :, 9], [2.57797424, 3.68852542])


def test_c15_another_head_size():
    """What a rank with another head size sends is refused at once."""
    torch = pytest.importorskip("torch")
    import attn.flash_attn.flash_attn_interface as low

    with pytest.raises(attn.Error) as error:
        low._flash_attn_forward(torch.ones(1, 3, 2, 8), torch.ones(1, 4, 2, 16), torch.ones(1, 4, 2, 16), 0.0, None, False, -1, -1, 0.0, None, False)
    assert error.value.field == "k" and "16" in str(error.value) and "8" in str(error.value)
