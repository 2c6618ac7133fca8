# SPDX-License-Identifier: Apache-2.0
"""From views of tensors and options to a plan. Plans are kept: one for each set of shapes, strides, types, options and
device, the latest ones first."""
import ctypes
import numbers
import operator
import threading
from collections import OrderedDict, namedtuple

from . import _library as lib
from ._errors import invalid, raise_status
from ._tensors import DTYPES

Options = namedtuple(
    "Options",
    "layout causal corner window global_tokens scale softcap dropout deterministic tf32 implementation tile_q tile_kv splits "
    "stages tensor_cores head_first batch_first",
    defaults=("bshd", False, "bottom-right", (-1, -1), 0, None, 0.0, 0.0, False, False, None, 0, 0, 0, 0, None, 0, 0),
)
LAYOUTS = {"bshd": (0, 2, 1, 3), "bhsd": (0, 1, 2, 3), "thd": (None, 1, 0, 2)}
_WHOLE = ("global_tokens", "tile_q", "tile_kv", "splits", "stages", "head_first", "batch_first")
KEPT = 256


def whole(name, value):
    try:
        return operator.index(value)
    except TypeError:
        raise invalid(name, repr(value), "be a whole number") from None


def _flag(name, value):
    if isinstance(value, int) or getattr(value, "ndim", None) == 0:
        return bool(value)
    raise invalid(name, repr(value), "be True or False")


def words(seed, offset):
    """Seed and offset of dropout as unsigned numbers: from a number, from one or two in a row, a tensor or an array."""
    if hasattr(seed, "tolist"):
        if "int" not in str(seed.dtype):
            raise invalid("seed", str(seed.dtype), "hold whole numbers")
        seed = seed.reshape(-1).tolist()
    given = [whole("seed", n) for n in (seed if isinstance(seed, (list, tuple)) else [seed])]
    if len(given) not in (1, 2):
        raise invalid("seed", f"of {len(given)} numbers", "have one or two")
    return given[0] & (2**64 - 1), (given[1] if len(given) > 1 else whole("offset", offset)) & (2**64 - 1)


def options(**given):
    """Options checked one by one, in plain types: equal ones are the same key of a plan."""
    o = Options(**given)
    if not isinstance(o.layout, str) or o.layout not in LAYOUTS:
        raise invalid("layout", repr(o.layout), 'be "bshd", "bhsd" or "thd"')
    if not isinstance(o.corner, str) or o.corner not in ("bottom-right", "top-left"):
        raise invalid("corner", repr(o.corner), 'be "bottom-right" or "top-left"')
    try:
        left, right = (-1 if x is None else operator.index(x) for x in o.window)
    except (TypeError, ValueError):
        raise invalid("window", repr(o.window), "be two whole numbers, left and right") from None
    plain = {name: whole(name, getattr(o, name)) for name in _WHOLE}
    plain.update({name: _flag(name, getattr(o, name)) for name in ("causal", "deterministic", "tf32")})
    for name in ("scale", "softcap", "dropout"):
        value = getattr(o, name)
        if not isinstance(value, numbers.Real) and not (name == "scale" and value is None):
            raise invalid(name, repr(value), "be a number")
        plain[name] = value if value is None else float(value)
    if o.tensor_cores is not None and o.tensor_cores not in (False, True):
        raise invalid("tensor_cores", repr(o.tensor_cores), "be None, False or True")
    if o.implementation is not None and not isinstance(o.implementation, str):
        raise invalid("implementation", repr(o.implementation), "be a name")
    cores = None if o.tensor_cores is None else bool(o.tensor_cores)
    return o._replace(layout=str(o.layout), corner=str(o.corner), window=(left, right), tensor_cores=cores, **plain)


class Sizes(namedtuple("Sizes", "batch heads_q heads_kv tokens_q tokens_kv total_q total_kv dim_qk dim_v flat rows_q rows_kv segments")):
    """flat: tensors have no axis of sequences; rows_q, rows_kv: attn_rows; segments: how many, of q and kv."""

    def lse_shape(self):
        return (self.heads_q, self.total_q) if self.flat else (self.batch, self.heads_q, self.total_q)


def sizes(o, q, k, v, batch, tokens, rows, segments):
    """What the shapes say together; where they contradict each other, an error names the one that differs. Of q and kv:
    tokens: longest sequences, None for the tensors' own; rows: attn_rows."""
    axes = LAYOUTS[o.layout]
    rank = 3 if o.layout == "thd" else 4
    for name, t in (("q", q), ("k", k), ("v", v)):
        if len(t.shape) != rank:
            raise invalid(name, f"of {len(t.shape)} axes", f'have {rank} with layout "{o.layout}"')
    at = lambda t, n: t.shape[axes[n]]
    for name, t, n in (("k", k, 1), ("v", v, 1), ("k", k, 2), ("v", v, 2)):
        word = ("batch", "heads", "tokens", "dim")[n]
        if name == "v" and at(v, n) != at(k, n):
            raise invalid("v", f"of {at(v, n)} {word}", f"have k's {at(k, n)}")
    if at(k, 3) != at(q, 3):
        raise invalid("k", f"of head size {at(k, 3)}", f"have q's {at(q, 3)}")
    for name, t in (("q", q), ("v", v)):
        if at(t, 3) < 1:
            raise invalid(name, "of head size 0", "have at least 1")
    if at(q, 1) % at(k, 1) if at(q, 1) and at(k, 1) else at(q, 1) != at(k, 1):
        raise invalid("k", f"of heads_kv = {at(k, 1)}", f"divide q's heads_q = {at(q, 1)}")
    if rank == 4:
        for name, t in (("k", k), ("v", v)):
            if t.shape[0] != q.shape[0]:
                raise invalid(name, f"of batch {t.shape[0]}", f"have q's {q.shape[0]}")
        batch = q.shape[0]
    tokens = [own if given is None else given for given, own in zip(tokens, (at(q, 2), at(k, 2)))]
    return Sizes(batch, at(q, 1), at(k, 1), *tokens, at(q, 2), at(k, 2), at(q, 3), at(v, 3), rank == 3, *rows, segments)


def layout(o, name, t):
    if t.dtype not in DTYPES:
        raise invalid(name, t.dtype, "be float32, float16, bfloat16 or float64")
    return lib.Layout(DTYPES[t.dtype], (ctypes.c_int64 * 4)(*(0 if a is None else t.stride[a] for a in LAYOUTS[o.layout])))


def score_layout(s, name, t, kinds):
    """[sequence, head, row, key], any of them 1, leading ones left out."""
    if t.dtype not in kinds:
        raise invalid(name, t.dtype, "be " + " or ".join(dict.fromkeys(kinds)))
    if len(t.shape) > 4:
        raise invalid(name, f"of {len(t.shape)} axes", "have at most 4")
    pad = 4 - len(t.shape)
    shape, stride = (1,) * pad + tuple(t.shape), (0,) * pad + tuple(t.stride)
    full = (s.batch, s.heads_q, s.tokens_q, s.tokens_kv)
    for axis in range(4):
        if shape[axis] not in (1, full[axis]):
            raise invalid(name, f"of shape {tuple(t.shape)}", f"broadcast to {full}")
    return lib.Layout(DTYPES[t.dtype], (ctypes.c_int64 * 4)(*(0 if n == 1 else st for n, st in zip(shape, stride))))


def head_layout(s, name, t, kind, batched):
    if t.dtype != kind:
        raise invalid(name, t.dtype, f"be {kind}")
    if tuple(t.shape) not in ((s.heads_q,),) + (((s.batch, s.heads_q),) if batched else ()):
        raise invalid(name, f"of shape {tuple(t.shape)}", f"be ({s.heads_q},)" + (f" or ({s.batch}, {s.heads_q})" if batched else ""))
    return lib.Layout(DTYPES[t.dtype], (ctypes.c_int64 * 4)(t.stride[0] if len(t.shape) == 2 else 0, t.stride[-1], 0, 0))


def lse_layout(s, name, t):
    wide = "float64" if t.dtype == "float64" else "float32"
    if tuple(t.shape) != s.lse_shape() or t.dtype != wide:
        raise invalid(name, f"{t.dtype} of shape {tuple(t.shape)}", f"be {wide} of shape {s.lse_shape()}")
    stride = (0,) * (3 - len(t.shape)) + tuple(t.stride)
    return lib.Layout(DTYPES[t.dtype], (ctypes.c_int64 * 4)(*stride, 0))


class Context:
    def __init__(self, device):
        config = lib.Config(struct_size=ctypes.sizeof(lib.Config), device=device.encode())
        self.handle, error = ctypes.c_void_p(), lib.Status()
        if lib.context_create(self.handle, config, error):
            raise_status(error)


class Plan:
    """Never destroyed while someone runs it: they hold it."""

    def __init__(self, context, problem, o):
        cores = {None: 0, False: 1, True: 2}[o.tensor_cores]
        hints = lib.Hints(ctypes.sizeof(lib.Hints), o.implementation.encode() if o.implementation else None, o.tile_q,
                          o.tile_kv, o.splits, o.stages, cores)
        self.context, self.problem, self.handle, error = context, problem, ctypes.c_void_p(), lib.Status()
        if lib.plan_create(self.handle, context.handle, problem, hints, error):
            raise_status(error)
        self.workspace = lib.plan_workspace(self.handle)
        self.spare = []  # argument blocks, one a running thread

    def __del__(self):
        if getattr(self, "handle", None):
            lib.plan_destroy(self.handle)

    def describe(self):
        size = lib.plan_describe(self.handle, None, 0) + 1
        text = ctypes.create_string_buffer(size)
        lib.plan_describe(self.handle, text, size)
        return text.value.decode()


_lock = threading.Lock()
_contexts = {}
_plans = OrderedDict()


def context(device):
    name = "cuda" + device[4:] if device.startswith("cuda") else device
    if name not in ("cpu",) and not name.startswith("cuda"):
        raise invalid("q", f"on device {device}", "lie on the CPU or an NVIDIA GPU")
    with _lock:
        found = _contexts.get(name)
        if found is None:
            found = _contexts[name] = Context(name)
        return found


def plan(key, make):
    """The plan kept under key, else the one that make() makes: (device, problem, options)."""
    with _lock:
        found = _plans.get(key)
        if found is not None:
            _plans.move_to_end(key)
            return found
    device, problem, o = make()
    found = Plan(context(device), problem, o)
    with _lock:
        _plans[key] = found
        while len(_plans) > KEPT:
            _plans.popitem(last=False)
    return found


def problem(o, s, pass_, flags):
    p = lib.Problem(struct_size=ctypes.sizeof(lib.Problem), pass_=pass_, batch=s.batch, heads_q=s.heads_q, heads_kv=s.heads_kv,
                    tokens_q=s.tokens_q, tokens_kv=s.tokens_kv, dim_qk=s.dim_qk, dim_v=s.dim_v, softcap=o.softcap, dropout=o.dropout)
    p.rows_q, p.rows_kv = s.rows_q, s.rows_kv
    p.total_q, p.total_kv = s.total_q, s.total_kv
    p.segments_q, p.segments_kv = s.segments
    left, right = o.window
    kind = (lib.CAUSAL if o.causal else 0) | (lib.WINDOW if o.window != (-1, -1) else 0) | (lib.GLOBALS if o.global_tokens else 0)
    p.band = lib.Band(kind, 1 if o.corner == "top-left" else 0, left if kind & lib.WINDOW else 0, right if kind & lib.WINDOW else 0,
                      o.global_tokens)
    if o.scale is not None:
        p.scale = o.scale
        flags |= lib.HAS_SCALE
    p.flags = flags | (lib.DETERMINISTIC if o.deterministic else 0) | (lib.ALLOW_TF32 if o.tf32 else 0)
    return p
