# SPDX-License-Identifier: Apache-2.0
"""Calls on PyTorch tensors, prepared once and then run for the cost of their launch.

A key holds all that a plan depends on: options, longest sequences, and of each tensor shape, strides, type and device.
What is kept under it is a `Forward`: the plan, patterns of the outputs, argument blocks. A later call with that key makes
its outputs, writes addresses into a block and calls the library. Each `Forward` keeps the `Backward`s that were wanted of
it, by strides of the arriving gradients and by what needs one; by all strides where saved tensors may have come back in
others than they went.

Invariants
- A key is kept only with options in plain types (_problem.options), so that equal keys mean equal plans.
- An argument block serves one running call: it is taken from a list and given back, which threads may do together.
  Fields that a key does not use are 0 in the blocks of its call, always.
- Lengths are contiguous int32 here, on the device or the host, where the library reads them before it returns."""
import ctypes
import operator
import struct
import threading

import torch

from . import _cuda, _problem, _run
from . import _library as lib
from ._errors import raise_status
from ._tensors import view

# What a call may have besides q, k and v, in the order of the library's arguments; the last four with segments only.
OTHERS = ("bias", "mask", "alibi", "sink", "cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv", "segments_q", "segments_kv",
          "lengths_q", "lengths_kv")
_KEPT = 1024
_SMALL = 1 << 16  # bytes of workspace that an argument block on the CPU keeps

_FIVE, _MORE, _PAIR, _ONE, _SIX = (struct.Struct("=%dQ" % n).pack_into for n in (5, 8, 2, 1, 6))
_Q, _BIAS, _SEED, _DOUT = lib.Args.q.offset, lib.Args.bias.offset, lib.Args.seed.offset, lib.Args.dout.offset
_SEGMENTS = lib.Args.segments_q.offset
_STATUS, _DEVICE_SEED = lib.Args.status.offset, lib.Args.device_seed.offset


def _plain(name):
    """The library's function taking addresses as numbers."""
    function = lib.library[name]
    function.restype = ctypes.c_int
    function.argtypes = (ctypes.c_void_p,) * 3 + (ctypes.c_size_t,) + (ctypes.c_void_p,) * 2
    return function


_forward, _backward = _plain("attn_forward"), _plain("attn_backward")
# q, k, v, o, lse, nothing up to dout, and what follows that: all that a backward with nothing else has.
_PLAIN = struct.Struct("=5Q%dx8Q" % (_DOUT - _Q - 40)).pack_into
_empty_like, _zeros_like = torch.empty_like, torch.zeros_like
_stream = _cuda.stream
_calls, _ones = {}, {}
_lock = threading.Lock()


def pattern(shape, dtype, device):
    """What empty_like takes for a contiguous tensor of that shape: views of one element for each type and device."""
    one = _ones.get((dtype, device))
    if one is None:
        make = lambda: torch.empty(1, dtype=dtype, device=device)
        one = _ones[dtype, device] = _cuda.apart(make) if device.type == "cuda" else make()
    return one.expand(shape)


class _Block:
    __slots__ = ("args", "error", "at_args", "at_error", "space", "at_space")

    def __init__(self, space, options):
        self.args, self.error = lib.Args(struct_size=ctypes.sizeof(lib.Args)), lib.Status()
        self.args.head_first, self.args.batch_first = options.head_first, options.batch_first
        self.at_args, self.at_error = ctypes.addressof(self.args), ctypes.addressof(self.error)
        self.space = torch.empty(space + 64, dtype=torch.uint8, device="cpu") if space else None
        self.at_space = (self.space.data_ptr() + 63) // 64 * 64 if space else None


class _Call:
    __slots__ = ("function", "plan", "handle", "workspace", "space", "kept", "blocks", "device", "index", "counted", "stray", "sizes",
                 "firsts")

    def __init__(self, function, plan, given):
        self.function, self.plan, self.handle, self.workspace = function, plan, plan.handle.value, plan.workspace
        self.blocks, self.device, self.index = [], given.q.device, given.q.device.index
        self.counted = given.device_lengths
        self.sizes, self.firsts = given.s, given.o
        self.stray = given.s.rows_q != lib.DENSE or given.s.rows_kv != lib.DENSE  # rows may belong to no sequence
        on_cpu = self.device.type == "cpu"
        if on_cpu:
            self.index = None
        self.kept = self.workspace if on_cpu and self.workspace <= _SMALL else 0
        self.space = None
        if self.workspace and not self.kept:
            self.space = pattern((self.workspace + (64 if on_cpu else 0),), torch.uint8, self.device)

    def loose(self, q, k, others):
        """May rows belong to no sequence that the library leaves alone? Unknown where segments lie on the device."""
        if self.counted:
            return lib.SEGMENTS in (self.sizes.rows_q, self.sizes.rows_kv)
        if others[4] is None or others[5] is None:
            return True
        return others[4].tolist()[-1:] != [q.shape[0]] or others[5].tolist()[-1:] != [k.shape[0]]

    def block(self):
        try:
            return self.blocks.pop()
        except IndexError:
            return _Block(self.kept, self.firsts)

    def launch(self, block):
        space, address, index = self.space, block.at_space, self.index
        if space is not None:
            space = _empty_like(space)
            address = space.data_ptr()
            if index is None:
                address = (address + 63) // 64 * 64
        stream = None if index is None else _stream(index)
        if self.function(self.handle, block.at_args, address, self.workspace, stream, block.at_error):
            raise_status(block.error)
        self.blocks.append(block)

    def run(self, q, k, v, o, lse, others, seed, gradients):
        """others: tensors in the order of OTHERS, or None; seed: (seed, offset), a tensor of two on the device, or None."""
        block = self.block()
        args = block.args
        _FIVE(args, _Q, q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), 0 if lse is None else lse.data_ptr())
        if others is not None:
            _MORE(args, _BIAS, *[0 if t is None else t.data_ptr() for t in others[:8]])
            if len(others) > 8:
                at = [0 if t is None else t.data_ptr() for t in others[8:]]
                _SIX(args, _SEGMENTS, *at[:2], *self.sizes.segments, *at[2:])
        if gradients is not None:
            _MORE(args, _DOUT, *[0 if t is None else t.data_ptr() for t in gradients])
        if seed is not None:
            if type(seed) is tuple:
                _PAIR(args, _SEED, *seed)
            else:
                _ONE(args, _DEVICE_SEED, seed.data_ptr())
        if self.counted:
            board, at, word = _cuda.status_word(self.device)
            _ONE(args, _STATUS, word)
            self.launch(block)
            _cuda.note_status(board, at)
        else:
            self.launch(block)


class Forward(_Call):
    __slots__ = ("options", "more", "like_o", "type_o", "like_lse", "gradients")

    def __init__(self, q, k, v, others, seed, out, options, out_dtype, more):
        given = _given(options, q, k, v, others, seed, more)
        self.options, self.more, self.gradients = options, more, {}
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        dtype = out_dtype or q.dtype if out is None else out.dtype
        shape = given.o_shape()
        self.like_o = None if shape == tuple(q.shape) else pattern(shape, dtype, q.device)
        self.type_o = None if dtype == q.dtype else dtype
        self.like_lse = pattern(given.s.lse_shape(), wide, q.device)
        o, lse = self._new_o(q, _empty_like) if out is None else out, _empty_like(self.like_lse)
        kinds = (str(q.dtype)[6:], str(wide)[6:])
        vo = _run.checked(given, o, "out_dtype" if out is None else "out", shape, kinds)
        super().__init__(_forward, _run.forward_plan(given, vo, view(lse, "lse")), given)

    def _new_o(self, q, new):
        if self.like_o is not None:
            return new(self.like_o)
        return new(q) if self.type_o is None else new(q, dtype=self.type_o)

    def forward(self, q, k, v, others, seed, out, wants_lse):
        late = False
        if self.stray and self.loose(q, k, others):
            if out is None:
                o = self._new_o(q, _zeros_like)
            elif self.counted:
                o = out.zero_()
            else:  # after the call, which refuses wrong lengths
                o, late = out, True
            lse = _empty_like(self.like_lse).fill_(-float("inf"))
        else:
            if out is None:
                o = _empty_like(q) if self.like_o is None and self.type_o is None else self._new_o(q, _empty_like)
            else:
                o = out
            lse = _empty_like(self.like_lse) if wants_lse else None
        self.run(q, k, v, o, lse, others, seed, None)
        if late and self.sizes.rows_q != lib.DENSE:
            s = self.sizes
            left = _run.gaps(others[4], others[8] if len(others) > 8 else None, s.total_q, None if s.flat else s.batch)
            _run.fill_gaps(left, self.options.layout, o)
        if out is not None and not out.is_inference():
            torch.autograd.graph.increment_version(out)
        return o, lse

    def backward(self, dout, dlse, need, q, k, v, o, lse, others, seed, moved=False):
        """dq, dk, dv, dbias, dsink, None where need says so. moved: tensors of forward may have other strides now."""
        if dout is None:
            dout = torch.zeros((), dtype=o.dtype, device=o.device).expand(o.shape)
        elif dout.is_neg():
            dout = dout.resolve_neg()
        if dlse is not None:
            dlse = dlse.to(lse.dtype).resolve_neg()
        key = (need, dout.stride(), None if dlse is None else dlse.stride())
        if moved:
            key = (key, *[None if t is None else t.stride() for t in (q, k, v, o, lse, *(others or ()))])
        call = self.gradients.get(key)
        if call is None:
            call = Backward(self, need, dout, dlse, q, k, v, o, lse, others, seed)
            if len(self.gradients) >= _KEPT:
                self.gradients.clear()
            self.gradients[key] = call
        return call.backward(dout, dlse, q, k, v, o, lse, others, seed)


class Backward(_Call):
    __slots__ = ("need", "wide")

    def plain(self, dout, q, k, v, o, lse):
        """dq, dk and dv where those are all that is wanted, and q, k and v all that was given."""
        block = self.block()
        dq, dk, dv = _empty_like(q), _empty_like(k), _empty_like(v)
        _PLAIN(block.args, _Q, q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(), dout.data_ptr(), 0, 0,
               dq.data_ptr(), dk.data_ptr(), dv.data_ptr(), 0, 0)
        self.launch(block)
        return dq, dk, dv

    def __init__(self, forward, need, dout, dlse, q, k, v, o, lse, others, seed):
        given = _given(forward.options, q, k, v, others, seed, forward.more)
        self.need, self.wide, self.stray = need, lse.dtype, forward.stray
        ins = {"dout": view(dout, "dout"), "lse": view(lse, "lse"), "o": view(o, "o")}
        if dlse is not None:
            ins["dlse"] = view(dlse, "dlse")
        made = self._new(q, k, v, others, _empty_like)
        found = {name: view(t, name) for name, t in zip(("dq", "dk", "dv", "dbias", "dsink"), made) if t is not None}
        super().__init__(_backward, _run.backward_plan(given, ins, found), given)

    def _new(self, q, k, v, others, new):
        need = self.need
        return (new(q) if need[0] else None, new(k) if need[1] else None, new(v) if need[2] else None,
                _empty_like(others[0], dtype=self.wide) if need[3] else None,
                _empty_like(others[3], dtype=self.wide) if need[4] else None)

    def backward(self, dout, dlse, q, k, v, o, lse, others, seed):
        made = self._new(q, k, v, others, _zeros_like if self.stray and self.loose(q, k, others) else _empty_like)
        self.run(q, k, v, o, lse, others, seed, (dout, dlse, None, *made))
        if made[3] is not None and self.wide != others[0].dtype:
            made = (*made[:3], made[3].to(others[0].dtype), made[4])
        return made


def _given(options, q, k, v, others, seed, more):
    named = dict(zip(OTHERS, others or ()))
    words = {"seed": list(seed) if type(seed) is tuple else seed}
    return _run.Given(options, q, k, v, **named, **words, **more)


def _longest(cu, rows):
    ends = cu.tolist()
    return min(max(0, *map(operator.sub, ends[1:], ends)), rows) if len(ends) > 1 else rows


def bounds(q, k, others, max_seqlen_q, max_seqlen_kv):
    """The longest sequences, which a plan depends on: those given, else read off lengths on the host."""
    cu_q, cu_kv = others[4:6]
    if len(others) > 8:
        max_seqlen_q, max_seqlen_kv = (
            max([0, *t.tolist()]) if most is None and t is not None and t.is_cpu else most
            for most, t in ((max_seqlen_q, others[10]), (max_seqlen_kv, others[11])))
    if max_seqlen_q is None and cu_q is not None and cu_q.is_cpu:
        max_seqlen_q = _longest(cu_q, q.shape[0])
    if max_seqlen_kv is None and cu_kv is not None and cu_kv.is_cpu:
        max_seqlen_kv = _longest(cu_kv, k.shape[0])
    return max_seqlen_q, max_seqlen_kv


def _told(t):
    return None if t is None else (t.shape, t.stride(), t.dtype, t.device)


def key_of(q, k, v, others, seeded, out, options, out_dtype, max_seqlen_q, max_seqlen_kv):
    """options: all of them; seeded: whether the seed is read on the device, None without dropout. The second form
    is for calls with nothing but q, k and v."""
    key = (options, out_dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype, q.device,
           k.device, v.device)
    if others is None and seeded is None and out is None:
        return key
    return (key, tuple([_told(t) for t in others or ()]), seeded, _told(out), max_seqlen_q, max_seqlen_kv)


def find(key):
    """The call kept under key, or None; TypeError if something in the key has no hash."""
    return _calls.get(key)


def prepare(q, k, v, others, seed, out, o, out_dtype, max_seqlen_q, max_seqlen_kv):
    """The call, prepared now if it is not kept: with o, options of _problem.options."""
    ends = [None if n is None else _problem.whole(name, n) for name, n in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_kv", max_seqlen_kv))]
    ends = ends if others is None else bounds(q, k, others, *ends)
    seeded = None if seed is None else type(seed) is not tuple
    key = key_of(q, k, v, others, seeded, out, tuple(o), out_dtype, *ends)
    call = _calls.get(key)
    if call is None:
        call = Forward(q, k, v, others, seed, out, o, out_dtype, {"max_seqlen_q": ends[0], "max_seqlen_kv": ends[1]})
        with _lock:
            while len(_calls) >= _KEPT:
                del _calls[next(iter(_calls))]
            _calls[key] = call
    return call
