# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments, one at a time: the exception names the argument, its value and the limit, and nothing was written."""
import math
import pickle

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import attn
import attn.flash_attn as fa2
import attn.flash_attn.flash_attn_interface as low
import attn.flash_attn_3 as fa3
from attn.flash_attn.bert_padding import pad_input, unpad_input
from attn.flash_attn.layers.rotary import apply_rotary_emb

t = torch.randn


def ones(*shape, **more):
    return torch.ones(shape, **more)


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def meta(*shape, **more):
    return torch.empty(shape, device="meta", **more)


def graded(*shape):
    return torch.zeros(shape, requires_grad=True)


def refused(field, call, *written):
    """The error; written: tensors that must stay as they are."""
    before = [x.clone() for x in written]
    with pytest.raises(attn.Error) as error:
        call()
    assert isinstance(error.value, (ValueError, NotImplementedError))
    assert error.value.field.split("[")[0].split(".")[0] == field, error.value
    assert error.value.value is not None and error.value.limit is not None, error.value
    assert str(error.value).startswith(error.value.field)
    again = pickle.loads(pickle.dumps(error.value))
    assert type(again) is type(error.value) and (again.field, str(again)) == (error.value.field, str(error.value))
    assert all(torch.equal(a, b) for a, b in zip(before, written))
    return error.value


# Of attn.attention on q, k, v of (1, 4, 2, 8): arguments given by name, made when the test runs.
DENSE = {
    "q": [lambda: t(4, 2, 8), lambda: t(1, 1, 4, 2, 8), lambda: ones(1, 4, 2, 8, dtype=torch.int32), lambda: t(1, 4, 2, 8).to(torch.complex64),
          lambda: t(1, 4, 2, 8).to(torch.float8_e4m3fn), lambda: t(1, 4, 2, 8).to_sparse(), lambda: "x", lambda: None],
    "k": [lambda: t(4, 2, 8), lambda: t(2, 4, 2, 8), lambda: t(1, 4, 2, 9), lambda: t(1, 4, 2, 8).half(), lambda: meta(1, 4, 2, 8),
          lambda: t(1, 4, 2, 8).cpu().numpy(), lambda: t(1, 4, 2, 8).to_sparse(), lambda: [1.0], lambda: None],
    "v": [lambda: t(1, 5, 2, 8), lambda: t(1, 4, 1, 8), lambda: t(2, 4, 2, 8), lambda: t(1, 4, 2, 0), lambda: t(1, 4, 2, 8).double(), lambda: None],
    "mask": [lambda: t(4, 4), lambda: ones(3, 4, dtype=torch.bool), lambda: ones(1, 1, 1, 4, 4, dtype=torch.bool), lambda: graded(4, 4),
             lambda: meta(4, 4, dtype=torch.bool)],
    "bias": [lambda: ones(4, 4, dtype=torch.int32), lambda: ones(4, 4, dtype=torch.bool), lambda: t(4, 4).half(), lambda: t(3, 4), lambda: "x",
             lambda: meta(4, 4)],
    "alibi": [lambda: t(3), lambda: t(2).double(), lambda: graded(2), lambda: 0.5, lambda: meta(2)],
    "sink": [lambda: t(3), lambda: t(1, 2), lambda: meta(2)],
    "scale": [lambda: math.nan, lambda: math.inf, lambda: "1", lambda: torch.tensor(0.5)],
    "softcap": [lambda: -1.0, lambda: math.nan, lambda: None],
    "dropout": [lambda: 1.0, lambda: -0.1, lambda: math.nan, lambda: "x"],
    "window": [lambda: 3, lambda: (1, 2, 3), lambda: (-5, 0), lambda: (1.5, 0), lambda: ("a", 1), lambda: None],
    "causal": [lambda: "no", lambda: None, lambda: 0.5],
    "deterministic": [lambda: "no"], "tf32": [lambda: "no"],
    "corner": [lambda: "left", lambda: 1], "layout": [lambda: "sbhd", lambda: ["bshd"]],
    "global_tokens": [lambda: -1, lambda: 1.5],
    "cu_seqlens_q": [lambda: ints(0, 4)], "max_seqlen_q": [lambda: 4], "max_seqlen_kv": [lambda: 4],
    "used_q": [lambda: ints(-1)],
    "used_kv": [lambda: ints(1, 2), lambda: ints(5), lambda: t(1), lambda: ints(1).view(1, 1), lambda: meta(1, dtype=torch.int32)],
    "out": [lambda: t(1, 4, 2, 9), lambda: t(1, 4, 2, 8).half(), lambda: t(1, 1, 2, 8).expand(1, 4, 2, 8), lambda: meta(1, 4, 2, 8),
            lambda: t(1, 4, 2, 8).cpu().numpy(), lambda: graded(1, 4, 2, 8)],
    "out_dtype": [lambda: torch.int32, lambda: torch.float16, lambda: "nonsense", lambda: 3],
    "implementation": [lambda: "none such", lambda: 3],
    "tile_q": [lambda: -1, lambda: 1.5], "tile_kv": [lambda: -1], "splits": [lambda: -1], "stages": [lambda: -1],
    "tensor_cores": [lambda: "on", lambda: 2],
}  # fmt: skip
DENSE_CASES = [(field, n) for field, ways in DENSE.items() for n in range(len(ways))]


@pytest.mark.parametrize("field,n", DENSE_CASES, ids=[f"{f}-{n}" for f, n in DENSE_CASES])
def test_attention(field, n):
    given = {name: t(1, 4, 2, 8) for name in "qkv"}
    out = torch.full((1, 4, 2, 8), 7.0)
    if field not in ("out", "out_dtype"):
        given["out"] = out
    for _ in range(2):
        if field == "used_kv" and n == 1 or field == "used_q":
            if out.is_cuda:  # lengths that lie on a GPU are looked at there
                pytest.skip("read on the device")
        refused(field, lambda: attn.attention(**{**given, field: DENSE[field][n]()}), out)
        attn.attention(*(t(1, 4, 2, 8) for _ in range(3)), out=torch.empty(1, 4, 2, 8))


@pytest.mark.parametrize("seed", [1.5, "x", [], [1, 2, 3], lambda: t(1), lambda: torch.tensor([1, 2, 3]), lambda: meta(1, dtype=torch.int64)])
def test_seeds(seed):
    refused("seed", lambda: attn.attention(*(t(1, 4, 2, 8) for _ in range(3)), dropout=0.5, seed=seed() if callable(seed) else seed))


def test_offset():
    refused("offset", lambda: attn.attention(*(t(1, 4, 2, 8) for _ in range(3)), dropout=0.5, seed=1, offset=1.5))


PACKED = [
    ("cu_seqlens_q", lambda: None), ("cu_seqlens_kv", lambda: None), ("cu_seqlens_kv", lambda: [0, 8]), ("cu_seqlens_q", lambda: [1, 3, 8]),
    ("cu_seqlens_q", lambda: [0, 5, 3]), ("cu_seqlens_kv", lambda: [0, 3, 9]), ("cu_seqlens_kv", lambda: [0, 3, 2**32 + 8]),
    ("cu_seqlens_q", lambda: torch.tensor([0, 3, 2**32 + 8], device="cpu")), ("cu_seqlens_q", lambda: [0, 3, -(2**32) + 8]),
    ("cu_seqlens_q", lambda: t(3)), ("cu_seqlens_q", lambda: [[0, 8]]), ("cu_seqlens_q", lambda: meta(3, dtype=torch.int32)),
    ("max_seqlen_q", lambda: -1), ("max_seqlen_q", lambda: 5.7), ("max_seqlen_kv", lambda: "x"), ("max_seqlen_kv", lambda: 2**40),
    ("q", lambda: t(1, 8, 2, 8)), ("k", lambda: t(8, 3, 8)),
]  # fmt: skip


@pytest.mark.parametrize("field,make", PACKED, ids=[f"{f}-{n}" for n, (f, _) in enumerate(PACKED)])
def test_packed(field, make):
    given = dict(zip("qkv", (t(8, 2, 8) for _ in range(3))), layout="thd", cu_seqlens_q=[0, 3, 8], cu_seqlens_kv=[0, 3, 8],
                 out=torch.full((8, 2, 8), 7.0))
    if field == "k":
        given["v"] = make()
    refused(field, lambda: attn.attention(**{**given, field: make()}), given["out"])


@pytest.mark.parametrize("bound,field", [("max_seqlen_q", "cu_seqlens_q"), ("max_seqlen_kv", "cu_seqlens_kv")])
def test_longer_than_said(bound, field):
    out = torch.full((12, 2, 8), 7.0)
    given = dict(zip("qkv", (t(12, 2, 8) for _ in range(3))), layout="thd", cu_seqlens_q=[0, 3, 8], cu_seqlens_kv=[0, 3, 8], out=out)
    for _ in range(2):
        refused(field, lambda: attn.attention(**{**given, bound: 4}), out)
        attn.attention(**{**given, "out": None})


def test_gradients_are_not_lost_beside_arrays():
    arrays = [t(1, 4, 2, 8).cpu().numpy() for _ in range(3)]
    refused("bias", lambda: attn.attention(*arrays, bias=torch.zeros(4, 4, device="cpu", requires_grad=True)))
    refused("k", lambda: attn.attention(arrays[0], torch.zeros(1, 4, 2, 8, device="cpu"), arrays[2]))


def test_meta_tensors_give_meta_results():
    o, lse = attn.attention(meta(2, 5, 4, 8), meta(2, 7, 2, 8), meta(2, 7, 2, 6), return_lse=True)
    assert o.is_meta and o.shape == (2, 5, 4, 6) and lse.is_meta and lse.shape == (2, 4, 5)


DROPIN = [
    (lambda a: fa2.flash_attn_func(*a[:2], t(1, 3, 2, 8)), "v"), (lambda a: fa2.flash_attn_func(a[0].cpu().numpy(), *a[1:]), "q"),
    (lambda a: fa2.flash_attn_func(a[0], a[1][0], a[2]), "k"), (lambda a: fa2.flash_attn_func(a[0], a[1].half(), a[2]), "k"),
    (lambda a: fa2.flash_attn_func(a[0], t(1, 4, 3, 8), t(1, 4, 3, 8)), "k"), (lambda a: fa2.flash_attn_func(*a, dropout_p=2.0), "dropout_p"),
    (lambda a: fa2.flash_attn_func(*a, softmax_scale="x"), "softmax_scale"), (lambda a: fa2.flash_attn_func(*a, window_size=3), "window_size"),
    (lambda a: fa2.flash_attn_func(*a, window_size=(1, 2.5)), "window_size"), (lambda a: fa2.flash_attn_func(*a, softcap=-1.0), "softcap"),
    (lambda a: fa2.flash_attn_func(*a, softcap=None), "softcap"), (lambda a: fa2.flash_attn_func(*a, alibi_slopes=t(3)), "alibi_slopes"),
    (lambda a: fa2.flash_attn_func(*a, alibi_slopes=[0.5, 0.5]), "alibi_slopes"), (lambda a: fa2.flash_attn_func(*a, alibi_slopes=graded(2)), "alibi_slopes"),
    (lambda a: fa2.flash_attn_qkvpacked_func(a[0]), "qkv"), (lambda a: fa2.flash_attn_qkvpacked_func(t(1, 4, 4, 2, 8)), "qkv"),
    (lambda a: fa2.flash_attn_kvpacked_func(a[0], t(1, 4, 3, 2, 8)), "kv"), (lambda a: fa3.flash_attn_qkvpacked_func(a[0]), "num_heads_q"),
    (lambda a: fa3.flash_attn_qkvpacked_func(t(1, 4, 7, 8), num_heads_q=4), "num_heads_q"),
    (lambda a: fa3.flash_attn_qkvpacked_func(t(1, 4, 7, 8), num_heads_q=9), "num_heads_q"),
    (lambda a: fa3.flash_attn_func(*a, num_splits=-1), "num_splits"), (lambda a: fa3.flash_attn_func(*a, num_splits=257), "num_splits"),
    (lambda a: fa3.flash_attn_func(*a, qv=t(1, 4, 2, 9)), "qv"), (lambda a: fa3.flash_attn_func(*a, qv=3), "qv"),
    (lambda a: fa3.flash_attn_func(*a, attention_chunk=4), "attention_chunk"), (lambda a: fa3.flash_attn_func(*a, sm_margin=1), "sm_margin"),
    (lambda a: fa3.flash_attn_func(*a, q_descale=ones(1, 2)), "q_descale"), (lambda a: fa3.flash_attn_func(*a, k_descale=ones(1, 2)), "k_descale"),
    (lambda a: fa3.flash_attn_func(*a, v_descale=ones(1, 2)), "v_descale"),
    (lambda a: fa2.flash_attn_varlen_func(*pack(), None, ints(0, 3, 8), 5, 5), "cu_seqlens_q"),
    (lambda a: fa2.flash_attn_varlen_func(*pack(), ints(0, 3, 8), ints(0, 8), 5, 5), "cu_seqlens_k"),
    (lambda a: fa2.flash_attn_varlen_func(*pack(), ints(0, 3, 8), t(3), 5, 5), "cu_seqlens_k"),
    (lambda a: fa2.flash_attn_varlen_func(*pack(), ints(0, 3, 8), ints(0, 3, 8), None, 5), "max_seqlen_q"),
    (lambda a: fa2.flash_attn_varlen_func(*pack(), ints(0, 3, 8), ints(0, 3, 8), 5, 5.5), "max_seqlen_k"),
    (lambda a: fa2.flash_attn_varlen_func(*pack(), ints(0, 3, 8), ints(0, 3, 8), 5, 5, block_table=ints(0)), "block_table"),
    (lambda a: fa3.flash_attn_varlen_func(*pack(), ints(0, 3, 8), ints(0, 3, 8), 5, 5, seqused_k=ints(1)), "seqused_k"),
    (lambda a: fa3.flash_attn_varlen_func(*pack(), ints(0, 3, 8), ints(0, 3, 8), 5, 5, seqused_q=t(2)), "seqused_q"),
    (lambda a: fa3.flash_attn_varlen_func(*pack(), ints(0, 3, 8), ints(0, 3, 8), 5, 5, qv=t(8, 2, 9)), "qv"),
    (lambda a: low._flash_attn_forward(graded(1, 4, 2, 8), *a[1:], 0.0, None, False, -1, -1, 0.0, None, False), "q"),
    (lambda a: low._flash_attn_varlen_forward(*pack(), ints(0, 8), ints(0, 8), 8, 8, 0.0, None, False, leftpad_k=ints(0)), "leftpad_k"),
    (lambda a: low._flash_attn_varlen_forward(*pack(), ints(0, 8), ints(0, 8), 8, 8, 0.0, None, False, block_table=ints(0)), "block_table"),
    (lambda a: low.flash_attn_gpu.fwd, "flash_attn_gpu"),
    (lambda a: fa3.flash_attn_combine(t(2, 1, 3, 2, 4), t(2, 1, 3, 3)), "lse_partial"), (lambda a: fa3.flash_attn_combine(t(3, 2, 4), t(3, 2)), "out_partial"),
    (lambda a: fa3.flash_attn_combine(t(2, 1, 3, 2, 4), t(2, 1, 3, 2), t(5, 3, 2, 4)), "out"),
    (lambda a: fa3.flash_attn_combine(t(2, 1, 3, 2, 4), t(2, 1, 3, 2), t(1, 3, 2, 4), torch.float16), "out"),
    (lambda a: fa3.get_scheduler_metadata(1, 1, 8, 2, 2, 8, ints(3), page_size=16), "page_size"),
    (lambda a: apply_rotary_emb(t(1, 4, 2, 8), t(12, 5), t(12, 5)), "cos"), (lambda a: apply_rotary_emb(t(1, 4, 2, 8), t(12, 4), t(12, 3)), "sin"),
    (lambda a: apply_rotary_emb(t(1, 4, 2, 8), t(3, 4), t(3, 4)), "seqlen_offsets"), (lambda a: apply_rotary_emb(t(4, 2, 8), t(9, 4), t(9, 4)), "x"),
    (lambda a: apply_rotary_emb(t(1, 4, 2, 8), t(9, 4), t(9, 4), seqlen_offsets=-3), "seqlen_offsets"),
    (lambda a: apply_rotary_emb(t(2, 4, 2, 8), t(9, 4), t(9, 4), seqlen_offsets=ints(1)), "seqlen_offsets"),
    (lambda a: unpad_input(t(2, 4, 3), ones(2, 5)), "attention_mask"), (lambda a: pad_input(t(3, 3), ints(0, 1), 2, 4), "indices"),
]  # fmt: skip


def pack():
    return [t(8, 2, 8) for _ in range(3)]


@pytest.mark.parametrize("call,field", DROPIN, ids=[f"{n}-{field}" for n, (_, field) in enumerate(DROPIN)])
def test_drop_ins(call, field):
    tensors = [t(1, 4, 2, 8) for _ in range(3)]
    error = refused(field, lambda: call(tensors))
    if field in ("block_table", "leftpad_k", "attention_chunk", "sm_margin", "page_size", "flash_attn_gpu") or "descale" in field:
        assert isinstance(error, NotImplementedError)


LOW = {
    "dq": lambda: t(1, 4, 2, 9), "dk": lambda: t(1, 4, 2, 8).half(), "dv": lambda: t(4, 2, 8), "dout": lambda: t(1, 3, 2, 8),
    "out": lambda: t(1, 4, 2, 9), "softmax_lse": lambda: t(1, 2, 3), "rng_state": lambda: None, "k": lambda: t(1, 4, 2, 9),
}  # fmt: skip


@pytest.mark.parametrize("field", LOW)
def test_low_level_backward_writes_nothing(field):
    q, k, v = (t(1, 4, 2, 8) for _ in range(3))
    given = dict(q=q, k=k, v=v, dout=t(1, 4, 2, 8), out=t(1, 4, 2, 8), softmax_lse=t(1, 2, 4), rng_state=ints(1, 2).long())
    grads = {name: torch.full((1, 4, 2, 8), 7.0) for name in ("dq", "dk", "dv")}
    given.update({**grads, field: LOW[field]()})
    tail = (0.1 if field == "rng_state" else 0.0, None, False, -1, -1, 0.0, None, False)
    names = ("dout", "q", "k", "v", "out", "softmax_lse", "dq", "dk", "dv")
    refused(field, lambda: low._flash_attn_backward(*(given[n] for n in names), *tail, given["rng_state"]), *grads.values())


CACHE = [
    ("cache_seqlens", lambda: None), ("cache_seqlens", lambda: -1), ("cache_seqlens", lambda: 11), ("cache_seqlens", lambda: ints(0, 1)),
    ("cache_seqlens", lambda: t(3)), ("cache_seqlens", lambda: "x"), ("cache_seqlens", lambda: ints(0, 11, 1)),
    ("k", lambda: None), ("k", lambda: t(3, 2, 2, 9)), ("k", lambda: t(3, 2, 1, 8)), ("k", lambda: t(1, 2, 2, 8)), ("k", lambda: t(3, 2, 2, 8).half()),
    ("v", lambda: None), ("v", lambda: t(3, 1, 2, 8)), ("v", lambda: t(3, 2, 2, 8).half()), ("v", lambda: graded(3, 2, 2, 8)),
    ("q", lambda: t(3, 2, 8)), ("q", lambda: graded(3, 2, 4, 8)), ("k_cache", lambda: t(12, 2, 8)), ("k_cache", lambda: t(3, 12, 2, 8).half()),
    ("v_cache", lambda: t(3, 11, 2, 8)), ("v_cache", lambda: meta(3, 12, 2, 8)), ("k_cache", lambda: t(3, 12, 3, 8)),
    ("cache_batch_idx", lambda: ints(0, 1, 7)), ("cache_batch_idx", lambda: ints(0, 1, -1)), ("cache_batch_idx", lambda: ints(0, 1)),
    ("cache_batch_idx", lambda: ints(0, 1, 1)), ("cache_batch_idx", lambda: t(3)),
    ("cache_leftpad", lambda: ints(0)), ("cache_leftpad", lambda: t(3)), ("cache_leftpad", lambda: [0, 0, 0]),
    ("rotary_sin", lambda: None), ("rotary_cos", lambda: None), ("rotary_cos", lambda: t(4, 4)), ("rotary_cos", lambda: t(12, 5)),
    ("rotary_sin", lambda: t(12, 3)), ("rotary_cos", lambda: t(12)), ("num_splits", lambda: -3), ("num_splits", lambda: 129),
    ("alibi_slopes", lambda: t(3)), ("window_size", lambda: (1,)), ("softcap", lambda: -2.0), ("softmax_scale", lambda: math.nan),
    ("block_table", lambda: ints(0)),
]  # fmt: skip


def cache_call(module, field, value):
    given = dict(q=t(3, 2, 4, 8), k_cache=t(3, 12, 2, 8), v_cache=t(3, 12, 2, 8), k=t(3, 2, 2, 8), v=t(3, 2, 2, 8), cache_seqlens=ints(0, 3, 5))
    if field.startswith("rotary"):
        given.update(rotary_cos=t(12, 4), rotary_sin=t(12, 4))
    if field == "rotary_cos" and value is not None and value.shape == (12, 5):
        given["rotary_sin"] = t(12, 5)
    if field == "rotary_cos" and value is not None and value.shape == (4, 4):
        given["rotary_sin"] = t(4, 4)
    if field == "k_cache" and value.shape == (3, 12, 3, 8):
        given.update(v_cache=t(3, 12, 3, 8), k=t(3, 2, 3, 8), v=t(3, 2, 3, 8))
    given[field] = value
    caches = [given[name] for name in ("k_cache", "v_cache") if not given[name].is_meta]
    return refused(field, lambda: module.flash_attn_with_kvcache(**given), *caches)


@pytest.mark.parametrize("field,make", CACHE, ids=[f"{f}-{n}" for n, (f, _) in enumerate(CACHE)])
def test_caches_stay_as_they_are(field, make):
    value = make()
    if isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == torch.int32 and value.shape == (3,):
        pytest.skip("numbers on a GPU are not read")
    error = cache_call(fa2, field, value)
    if field == "block_table":
        assert isinstance(error, NotImplementedError)
    if field not in ("alibi_slopes", "block_table"):
        cache_call(fa3, field, make()) if field != "num_splits" else None


RAGGED = [
    ("max_seqlen_q", None), ("max_seqlen_q", 1.5), ("cu_seqlens_q", (0, 4, 2, 6)), ("cu_seqlens_q", (0, 1, 5, 6)), ("cu_seqlens_k_new", (0, 2, 4, 9)),
    ("cu_seqlens_k_new", (0, 4, 2, 6)), ("cu_seqlens_k_new", (0, 6)), ("cu_seqlens_k_new", None), ("rotary_seqlens", (0,)), ("rotary_seqlens", (0, 11, 1)),
]  # fmt: skip


@pytest.mark.parametrize("field,value", RAGGED)
def test_ragged_caches_stay_as_they_are(field, value):
    value = ints(*value) if isinstance(value, tuple) else value
    if isinstance(value, torch.Tensor) and value.is_cuda and value.numel() > 2:
        pytest.skip("numbers on a GPU are not read")
    given = dict(q=t(6, 4, 8), k_cache=t(3, 12, 2, 8), v_cache=t(3, 12, 2, 8), k=t(6, 2, 8), v=t(6, 2, 8), cache_seqlens=ints(0, 3, 5),
                 cu_seqlens_q=ints(0, 2, 4, 6), cu_seqlens_k_new=ints(0, 2, 4, 6), max_seqlen_q=2, rotary_cos=t(12, 4), rotary_sin=t(12, 4))
    given[field] = value
    name = {"rotary_seqlens": "rotary_cos"}.get(field, field) if isinstance(value, torch.Tensor) and value.numel() == 3 else field
    name = "k" if field == "cu_seqlens_k_new" and value is None else name
    refused(name, lambda: fa3.flash_attn_with_kvcache(**given), given["k_cache"], given["v_cache"])
    for name in ("page_table", "k_descale"):
        with pytest.raises(NotImplementedError, match=name):
            fa3.flash_attn_with_kvcache(**{**given, name: ints(0)})
