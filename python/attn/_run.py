# SPDX-License-Identifier: Apache-2.0
"""Forward and backward without autograd, into given or new tensors. All calls of the package end here.

Rows that belong to no sequence or segment get 0 (lse -inf): the library leaves them alone, but for packed rows whose
lengths lie on a GPU. On a GPU nothing here waits for it; lengths that lie there are checked there, and `check_device`
tells what they were found to be."""
import ctypes

import numpy as np

from . import _library as lib
from . import _problem, _tensors
from ._errors import invalid, raise_status
from ._tensors import adopt, view

_SIZE = ctypes.sizeof(lib.Args)


class Given:
    """Everything but q, k and v that both passes take, adopted, with its views."""

    def __init__(self, o, q, k, v, bias=None, mask=None, alibi=None, sink=None, cu_seqlens_q=None, cu_seqlens_kv=None,
                 max_seqlen_q=None, max_seqlen_kv=None, used_q=None, used_kv=None, segments_q=None, segments_kv=None,
                 lengths_q=None, lengths_kv=None, seed=None, offset=0):
        self.o = o
        self.q, self.k, self.v = (adopt(t, name) for t, name in ((q, "q"), (k, "k"), (v, "v")))
        for name in "qkv":
            if getattr(self, name) is None:
                raise invalid(name, "None", "be given")
        self.extra = {"bias": adopt(bias, "bias"), "mask": adopt(mask, "mask"), "alibi": adopt(alibi, "alibi"), "sink": adopt(sink, "sink")}
        self.views = {name: view(t, name) for name, t in self.named() if t is not None}
        vq = self.views["q"]
        self.device = vq.device
        if vq.dtype not in ("float32", "float16", "bfloat16", "float64"):
            raise invalid("q", vq.dtype, "be float32, float16, bfloat16 or float64")
        for name, t in self.views.items():
            if t.device != self.device:
                raise invalid(name, f"on {t.device}", f"lie where q does, on {self.device}")
        for name in "kv":
            if self.views[name].dtype != vq.dtype:
                raise invalid(name, self.views[name].dtype, f"be q's {vq.dtype}")
        self.lengths = {name: _tensors.lengths(t, name) for name, t in (
            ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_kv", cu_seqlens_kv), ("used_q", used_q), ("used_kv", used_kv),
            ("lengths_q", lengths_q), ("lengths_kv", lengths_kv))}
        self.lengths.update({name: _tensors.segments(t, name) for name, t in (("segments_q", segments_q), ("segments_kv", segments_kv))})
        places = {name: str(t.device) if _tensors.is_torch(t) else "cpu" for name, t in self.lengths.items() if t is not None}
        first = next(iter(places.values()), "cpu")
        self.device_lengths = first != "cpu"
        for name, place in places.items():
            if place not in ("cpu", self.device):
                raise invalid(name, f"on {place}", f"lie on the CPU or where q does, on {self.device}")
            if place != first:
                raise invalid(name, f"on {place}", f"lie where {next(iter(places))} does, on {first}")
        sides = [self._side("q", max_seqlen_q, self.q), self._side("kv", max_seqlen_kv, self.k)]
        batch = sides[0][0]
        if sides[1][0] != batch and None not in (batch, sides[1][0]):
            name = "cu_seqlens_kv" if self.lengths["cu_seqlens_kv"] is not None else "lengths_kv"
            raise invalid(name, f"of {sides[1][0]} sequences", f"have q's {batch}")
        self.s = _problem.sizes(o, vq, self.views["k"], self.views["v"], batch, *zip(*(side[1:] for side in sides)))
        for name in ("lengths_q", "lengths_kv"):
            if self.lengths[name] is not None and len(self.lengths[name]) != self.s.batch:
                raise invalid(name, f"of {len(self.lengths[name])} numbers", f"have batch, {self.s.batch}")
        for name in ("used_q", "used_kv"):
            if self.lengths[name] is not None and len(self.lengths[name]) != self.s.batch:
                raise invalid(name, f"of {len(self.lengths[name])} numbers", f"have batch, {self.s.batch}")
        self.flags = ((lib.USED_Q if self.lengths["used_q"] is not None else 0) | (lib.USED_KV if self.lengths["used_kv"] is not None else 0)
                      | (lib.DEVICE_LENGTHS | lib.CLEAR_REST if self.device_lengths else 0))
        self.seed, self.offset, self.device_seed = 0, 0, None
        if o.dropout:
            self._take_seed(seed, offset)

    def named(self):
        return [("q", self.q), ("k", self.k), ("v", self.v), *self.extra.items()]

    def _side(self, side, longest, tensor):
        """Of q or kv: number of sequences where lengths tell it, longest one or None, attn_rows, number of segments."""
        cu, segments, lengths = (self.lengths[f"{name}_{side}"] for name in ("cu_seqlens", "segments", "lengths"))
        flat, longest_name = self.o.layout == "thd", "max_seqlen_" + side
        if (segments is None) != (lengths is None):
            missing = "segments" if segments is None else "lengths"
            raise invalid(f"{missing}_{side}", "None", f"be given where {'lengths' if segments is None else 'segments'}_{side} is")
        if segments is not None and self.lengths["used_" + side] is not None:
            raise invalid(f"used_{side}", "given", f"be left out where segments_{side} is given")
        if segments is not None and cu is not None:
            raise invalid(f"segments_{side}", "given", f"be left out where cu_seqlens_{side} is given")
        if cu is not None and not flat:
            raise invalid(f"cu_seqlens_{side}", "given", f'go with layout "thd", not "{self.o.layout}"')
        if cu is None and segments is None:
            if flat:
                raise invalid(f"cu_seqlens_{side}", "None", 'be given with layout "thd"')
            if longest is not None:
                raise invalid(longest_name, "given", f'go with layout "thd", not "{self.o.layout}"')
            return None, None, lib.DENSE, 0
        if longest is not None:
            longest = _problem.whole(longest_name, longest)
            if not 0 <= longest < 2**31:
                raise invalid(longest_name, longest, "be from 0 to 2147483647")
        if segments is not None:
            if longest is None and self.device_lengths:
                raise invalid(longest_name, "None", f"be given where lengths_{side} lie on a GPU")
            longest = max([0, *lengths.tolist()]) if longest is None else longest
            return len(lengths) if flat else None, longest, lib.SEGMENTS, len(segments)
        if len(cu) < 1:
            raise invalid(f"cu_seqlens_{side}", "empty", "have batch + 1 numbers")
        rows = int(tensor.shape[0])
        if longest is None:
            longest = rows if self.device_lengths or len(cu) < 2 else min(max(int(np.diff(np.asarray(cu)).max()), 0), rows)
        return len(cu) - 1, longest, lib.PACKED, 0

    def _take_seed(self, seed, offset):
        if seed is None:
            raise invalid("seed", "None", "be given with dropout")
        if _tensors.is_torch(seed) and seed.device.type != "cpu":
            import torch
            if seed.dtype.is_floating_point or seed.numel() not in (1, 2):
                raise invalid("seed", f"{seed.dtype} of {seed.numel()} numbers", "have one or two whole numbers")
            seed = seed.reshape(-1).to(torch.int64)
            self.device_seed = seed if seed.numel() == 2 else torch.nn.functional.pad(seed, (0, 1), value=int(offset))
            self.flags |= lib.DEVICE_SEED
            return
        self.seed, self.offset = _problem.words(seed, offset)

    def problem(self, pass_, flags=0):
        o, s = self.o, self.s
        p = _problem.problem(o, s, pass_, self.flags | flags)
        wide = "float64" if self.views["q"].dtype == "float64" else "float32"
        for name in "qkv":
            setattr(p, name, _problem.layout(o, name, self.views[name]))
        if "bias" in self.views:
            p.bias = _problem.score_layout(s, "bias", self.views["bias"], ("float32", self.views["q"].dtype))
        if "mask" in self.views:
            p.mask = _problem.score_layout(s, "mask", self.views["mask"], ("bool", "uint8"))
        for name in ("alibi", "sink"):
            if name in self.views:
                setattr(p, name, _problem.head_layout(s, name, self.views[name], wide, name == "alibi"))
        return p

    def key(self):
        return (self.o, self.s, self.flags, self.device, tuple((n, t[1:]) for n, t in self.views.items()))

    def o_shape(self):
        return tuple(self.views["q"].shape[:-1]) + (self.s.dim_v,)



def gaps(cu, segments, rows, sequences):
    """Runs of rows that no sequence or segment has: (sequence or None where there is no axis of them, first, end)."""
    if cu is not None:
        return [(None, int(cu[-1]), rows)]
    found = []
    for sequence in [None] if sequences is None else range(sequences):
        end = 0
        for first, count in sorted((first, count) for first, count, _, of in segments.tolist() if sequence in (None, of)):
            found.append((sequence, end, first))
            end = first + count
        found.append((sequence, end, rows))
    return [gap for gap in found if gap[1] < gap[2]]


def fill_gaps(gaps, layout, t, lse=None):
    for sequence, first, end in gaps:
        one = slice(first, end)
        at = {"thd": (one,), "bshd": (sequence, one), "bhsd": (sequence, slice(None), one)}[layout]
        if t is not None:
            _tensors.fill(t[at], 0)
        if lse is not None:
            _tensors.fill(lse[(slice(None), one) if sequence is None else (sequence, slice(None), one)], -float("inf"))


def _clear(given, ran, side, tensors, lse=None):
    """Rows of no sequence: after the run, which refuses wrong lengths; before it where it alone can read them."""
    s = given.s
    rows = s.rows_q if side == "q" else s.rows_kv
    if rows == lib.DENSE or ran == given.device_lengths or (rows == lib.PACKED and given.device_lengths):
        return
    if not ran:
        for t in tensors:
            if t is not None:
                _tensors.fill(t, 0)
        if lse is not None:
            _tensors.fill(lse, -float("inf"))
        return
    left = gaps(given.lengths["cu_seqlens_" + side], given.lengths["segments_" + side], s.total_q if side == "q" else s.total_kv,
                None if s.flat else s.batch)
    for t in tensors:
        fill_gaps(left, given.o.layout, t, lse)


def _run(call, plan, given, pointers):
    try:
        args = plan.spare.pop()
    except IndexError:
        args = lib.Args(struct_size=_SIZE)
    for name, t in given.views.items():
        setattr(args, name, t.address)
    for name, t in given.lengths.items():
        setattr(args, name, None if t is None else t.data_ptr() if _tensors.is_torch(t) else t.ctypes.data)
    for name, address in pointers.items():
        setattr(args, name, address)
    args.n_segments_q, args.n_segments_kv = given.s.segments
    args.seed, args.offset = given.seed, given.offset
    args.head_first, args.batch_first = given.o.head_first, given.o.batch_first
    error, stream, status = lib.Status(), None, None
    if given.device == "cpu":
        space = np.empty(plan.workspace + 64, np.uint8) if plan.workspace else None
        address = (space.ctypes.data + 63) // 64 * 64 if plan.workspace else None
    else:
        from . import _cuda
        space, address = _cuda.workspace(given.q.device, plan.workspace)
        stream = _cuda.stream(given.q.device.index)
        if given.device_lengths:
            *status, args.status = _cuda.status_word(given.q.device)
        args.device_seed = None if given.device_seed is None else given.device_seed.data_ptr()
    failed = call(plan.handle, args, address, plan.workspace, stream, error)
    plan.spare.append(args)
    if failed:
        raise_status(error)
    if status is not None:
        _cuda.note_status(*status)


def written(t, name):
    """t's view, where it may be written."""
    if isinstance(t, np.ndarray) and not t.flags.writeable:
        raise invalid(name, "a read-only array", "be one that can be written")
    return view(t, name)


def checked(given, t, name, shape, kinds, view=view):
    found = view(t, name)
    if tuple(found.shape) != tuple(shape):
        raise invalid(name, f"of shape {tuple(found.shape)}", f"be {tuple(shape)}")
    if found.dtype not in kinds:
        raise invalid(name, found.dtype, "be " + " or ".join(dict.fromkeys(kinds)))
    if found.device != given.device:
        raise invalid(name, f"on {found.device}", f"lie where q does, on {given.device}")
    return found


def forward_plan(given, vo, vl):
    """The plan for these views of o and lse."""

    def make():
        p = given.problem(0)
        p.o, p.lse = _problem.layout(given.o, "out", vo), _problem.lse_layout(given.s, "lse", vl)
        return given.device, p, given.o

    return _problem.plan(("forward", given.key(), vo[1:], vl[1:]), make)


def backward_plan(given, ins, found, accumulate=False):
    """The plan for views of inputs (dout, lse, and o, dlse, delta where given) and of the gradients that are wanted."""

    def make():
        p = given.problem(1, lib.ACCUMULATE if accumulate else 0)
        p.o = _problem.layout(given.o, "o", ins.get("o", ins["dout"]))
        p.lse = _problem.lse_layout(given.s, "lse", ins["lse"])
        p.dout = _problem.layout(given.o, "dout", ins["dout"])
        for name in ("dq", "dk", "dv"):
            if name in found:
                setattr(p, name, _problem.layout(given.o, name, found[name]))
            else:
                setattr(p, name, _plain(given, given.views[name[1]]))
        shared = ins.get("dlse") or ins.get("delta")
        if shared is not None:
            p.dlse = _problem.lse_layout(given.s, "dlse", shared)
        if "dbias" in found:
            p.dbias = _problem.score_layout(given.s, "dbias", found["dbias"], ("float32", "float64"))
        if "dsink" in found and found["dsink"].stride != given.views["sink"].stride:
            raise invalid("dsink", "of other strides", "be laid out as sink is")
        return given.device, p, given.o

    key = ("backward", given.key(), accumulate, tuple((n, t[1:]) for n, t in ins.items()), tuple((n, t[1:]) for n, t in found.items()))
    return _problem.plan(key, make)


def forward(q, k, v, **more):
    """o and lse; more: as of forward_later."""
    out, lse, run = forward_later(q, k, v, **more)
    run()
    return out, lse


def forward_later(q, k, v, *, options=None, out=None, lse=None, out_dtype=None, **more):
    """o, lse, and what fills them when it is called; more: bias, mask, alibi, sink, lengths, seed, offset. All is checked
    here but lengths on the host, which are read when the call runs."""
    given = Given(options or _problem.Options(), q, k, v, **more)
    kind = given.views["q"].dtype
    wide = "float64" if kind == "float64" else "float32"
    if out_dtype is not None:
        out_dtype = _tensors.type_name(out_dtype, "out_dtype")
        if out is not None and view(adopt(out, "out"), "out").dtype != out_dtype:
            raise invalid("out_dtype", out_dtype, "be out's type, or be left out")
    if out is None:
        if out_dtype not in (None, kind, wide):
            raise invalid("out_dtype", out_dtype, "be " + " or ".join(dict.fromkeys((kind, wide))))
        out = _tensors.empty(given.q, given.o_shape(), out_dtype or kind)
    if lse is None:
        lse = _tensors.empty(given.q, given.s.lse_shape(), wide)
    vo = checked(given, out, "out", given.o_shape(), (kind, wide), written)
    vl = checked(given, lse, "lse", given.s.lse_shape(), (wide,), written)
    plan = forward_plan(given, vo, vl)

    def run():
        _clear(given, False, "q", (out,), lse)
        _run(lib.forward, plan, given, {"o": vo.address, "lse": vl.address})
        _clear(given, True, "q", (out,), lse)

    return out, lse, run


def backward(dout, q, k, v, o, lse, **more):
    """Gradients by name, those that `need` lists and those given; more: as of backward_later."""
    outputs, run = backward_later(dout, q, k, v, o, lse, **more)
    run()
    return outputs


def backward_later(dout, q, k, v, o, lse, *, options=None, dq=None, dk=None, dv=None, dlse=None, delta=None, need=("dq", "dk", "dv"),
                   dbias=None, dsink=None, accumulate=False, **more):
    """Gradients by name, and what fills them when it is called, as forward_later does."""
    given = Given(options or _problem.Options(), q, k, v, **more)
    kind = given.views["q"].dtype
    wide = "float64" if kind == "float64" else "float32"
    outputs = {"dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsink": dsink}
    source = {"dq": given.q, "dk": given.k, "dv": given.v, "dbias": given.extra["bias"], "dsink": given.extra["sink"]}
    for name in outputs:
        if outputs[name] is None and name in need:
            if source[name] is None:
                raise invalid("need", name, "name gradients of tensors that are given")
            shape = tuple(source[name].shape)
            outputs[name] = _tensors.empty(source[name], shape, kind if name in ("dq", "dk", "dv") else wide)
            if name in ("dq", "dk", "dv") and accumulate:
                _tensors.fill(outputs[name], 0)
    outputs = {name: t for name, t in outputs.items() if t is not None}
    found = {name: checked(given, t, name, source[name].shape, (kind, wide) if name in ("dq", "dk", "dv") else (wide,), written)
             for name, t in outputs.items()}
    ins = {"dout": checked(given, adopt(dout, "dout"), "dout", given.o_shape(), (kind, wide)),
           "lse": checked(given, adopt(lse, "lse"), "lse", given.s.lse_shape(), (wide,))}
    if o is not None:
        ins["o"] = checked(given, adopt(o, "o"), "o", given.o_shape(), (kind, wide))
    for name, t in (("dlse", dlse), ("delta", delta)):
        if t is not None:
            ins[name] = checked(given, adopt(t, name), name, given.s.lse_shape(), (wide,))
    if "dlse" in ins and "delta" in ins and ins["dlse"].stride != ins["delta"].stride:
        raise invalid("delta", f"with strides {ins['delta'].stride}", f"have dlse's {ins['dlse'].stride}")

    plan = backward_plan(given, ins, found, accumulate)
    pointers = {name: None for name in ("o", "dlse", "delta", "dq", "dk", "dv", "dbias", "dsink")}
    pointers.update({name: t.address for name, t in (*ins.items(), *found.items())})

    def clear(ran):
        if not accumulate:
            _clear(given, ran, "q", (outputs.get("dq"),))
            _clear(given, ran, "kv", (outputs.get("dk"), outputs.get("dv")))

    def run():
        clear(False)
        _run(lib.backward, plan, given, pointers)
        clear(True)

    return outputs, run


def _plain(given, like):
    """A contiguous layout for a gradient that nobody asked for: inputs may be broadcast, outputs may not."""
    stride, step = [], 1
    for n in reversed(like.shape):
        stride.insert(0, step)
        step *= max(n, 1)
    return _problem.layout(given.o, "gradient", like._replace(stride=tuple(stride)))
