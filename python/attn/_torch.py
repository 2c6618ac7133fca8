# SPDX-License-Identifier: Apache-2.0
"""PyTorch: gradients, and custom operators for what traces instead of running.

Eager calls on plain tensors go through prepared calls (_prepared) to the library, with gradients through an
autograd.Function; under torch.compile, export, dispatch modes, functorch and for tensor subclasses the operators
attn::forward and attn::backward stand for them. Work is queued in the current stream of the tensors' device, workspace
is the caching allocator's, and nothing waits for the device."""
from typing import Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _cuda, _prepared, _problem, _tensors
from ._errors import invalid

check_device = _cuda.check_device
_PLAIN = (Tensor, torch.nn.Parameter)
_grad_enabled, _compiling = torch.is_grad_enabled, torch.compiler.is_compiling
_modes, _transforms, _tracing = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active, torch._C._get_tracing_state


def traced():
    """Is someone watching operations instead of running them?"""
    return _compiling() or bool(_modes() or _transforms() or _tracing())


_SECOND = "attn.attention: backward of backward is not offered"


class _Last(torch.autograd.Function):
    """Hands gradients on as they are. They depend on all that is given, and asking how is an error."""

    @staticmethod
    def forward(ctx, count, *tensors):
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(_SECOND)


def _once(found, *sources):
    """Gradients of which no further ones exist: asking for those is an error, neither zero nor unused."""
    if not _grad_enabled():
        return found
    given = [g for g in found if g is not None]
    marked = iter(_Last.apply(len(given), *given, *sources))
    return tuple(None if g is None else next(marked) for g in found)


_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: True)


class _Prepared(torch.autograd.Function):
    """Of a prepared call: (call, others, seed, wants_lse) travel as one argument, since each costs both passes time."""

    @staticmethod
    def forward(ctx, q, k, v, bias, sink, what):
        call, others, seed, wants_lse = what
        o, lse = call.forward(q, k, v, others, seed, None, True)
        if others is None and type(seed) is not Tensor:
            ctx.save_for_backward(q, k, v, o, lse)
        else:
            ctx.save_for_backward(q, k, v, o, lse, *(others or ()), seed if type(seed) is Tensor else None)
        ctx.call, ctx.seed, ctx.moved = call, None if type(seed) is Tensor else seed, _hooks(False) is not None
        ctx.set_materialize_grads(False)
        return (o, lse) if wants_lse else o

    @staticmethod
    def backward(ctx, dout, dlse=None):
        if dout is None and dlse is None:
            return (None,) * 6
        q, k, v, o, lse, *others = ctx.saved_tensors
        seed = ctx.seed
        if others:
            last = others.pop()
            seed = last if seed is None else seed
        found = ctx.call.backward(dout, dlse, ctx.needs_input_grad[:5], q, k, v, o, lse, others or None, seed, ctx.moved)
        if _grad_enabled():
            found = _once(found, dout, dlse, q, k, v, *(t for t in others if t is not seed))
        return (*found, None)


class _Plain(torch.autograd.Function):
    """_Prepared for q, k and v alone and o alone: with nothing in it that such a call does not need."""

    @staticmethod
    def forward(ctx, q, k, v, call):
        o, lse = call.forward(q, k, v, None, None, None, True)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.call = call
        return o

    @staticmethod
    def backward(ctx, dout):
        q, k, v, o, lse = ctx.saved_tensors
        if ctx.needs_input_grad == _THREE and not dout.is_neg():
            call = ctx.call.gradients.get((_FIVE, dout.stride(), None))
            if call is not None:
                dq, dk, dv = call.plain(dout, q, k, v, o, lse)
                return (*_once((dq, dk, dv), dout, q, k, v), None) if _grad_enabled() else (dq, dk, dv, None)
        need = (*ctx.needs_input_grad[:3], False, False)
        found = ctx.call.backward(dout, None, need, q, k, v, o, lse, None, None)
        return (*(_once(found, dout, q, k, v) if _grad_enabled() else found)[:3], None)


_THREE, _FIVE = (True, True, True, False), (True, True, True, False, False)
# Function.apply without its look at functorch, which quick and attention have taken.
_apply, _apply_plain = (super(torch.autograd.Function, kind).apply for kind in (_Prepared, _Plain))


def quick(q, k, v, options, out, out_dtype, return_lse, bias, mask, alibi, sink, cu_seqlens_q, cu_seqlens_kv, used_q, used_kv,
          max_seqlen_q, max_seqlen_kv, seed, offset):
    """The result of a call that was prepared before; None for `attention` to take it. options: see key_of. Nothing here
    checks arguments but the seed: what has a key as prepared was checked then."""
    if _compiling() or type(q) is not Tensor or type(k) is not Tensor or type(v) is not Tensor:
        return None
    if _modes() or _transforms() or _tracing() or forward_ad._current_level >= 0 or q.is_neg() or k.is_neg() or v.is_neg():
        return None
    graded = _grad_enabled()
    need = graded and (q.requires_grad or k.requires_grad or v.requires_grad)
    seeded = None
    try:
        if (bias is None and sink is None and mask is None and alibi is None and cu_seqlens_q is None and cu_seqlens_kv is None
                and used_q is None and used_kv is None and max_seqlen_q is None and max_seqlen_kv is None):
            others = None
        else:
            others = (bias, mask, alibi, sink, cu_seqlens_q, cu_seqlens_kv, used_q, used_kv)
            for t in others:
                if t is not None and (type(t) not in _PLAIN or t.is_neg()):
                    return None
            if graded:
                if (mask is not None and mask.requires_grad) or (alibi is not None and alibi.requires_grad):
                    return None
                need = need or (bias is not None and bias.requires_grad) or (sink is not None and sink.requires_grad)
            max_seqlen_q, max_seqlen_kv = _prepared.bounds(q, k, others, max_seqlen_q, max_seqlen_kv)
        if out is not None and (need or type(out) is not Tensor or out.is_neg() or (graded and out.requires_grad)):
            return None
        if options[7]:
            seeded = q.is_cuda if seed is None else isinstance(seed, Tensor) and seed.is_cuda
        call = _prepared.find(_prepared.key_of(q, k, v, others, seeded, out, options, out_dtype, max_seqlen_q, max_seqlen_kv))
    except (TypeError, RuntimeError):  # no hash, no sizes (nested tensors)
        return None
    if call is None:
        return None
    seed = None if seeded is None else _seed(seed, offset, q)
    if need:
        if others is None and seed is None and not return_lse and not call.stray and _hooks(False) is None:
            return _apply_plain(q, k, v, call)
        return _apply(q, k, v, bias, sink, (call, others, seed, return_lse))
    o, lse = call.forward(q, k, v, others, seed, out, return_lse)
    return (o, lse) if return_lse else o


def _op_options(layout, causal, corner, left, right, global_tokens, scale, softcap, dropout, deterministic, tf32, implementation,
                tile_q, tile_kv, splits, stages, tensor_cores, head_first, batch_first):
    return _problem.options(layout=layout, causal=causal, corner=corner, window=(left, right), global_tokens=global_tokens,
                            scale=scale, softcap=softcap, dropout=dropout, deterministic=deterministic, tf32=tf32,
                            implementation=implementation, tile_q=tile_q, tile_kv=tile_kv, splits=splits, stages=stages,
                            tensor_cores=tensor_cores, head_first=head_first, batch_first=batch_first)


def _adopted(*others):
    """Tensors of what is given in the order of _prepared.OTHERS, lengths as the library reads them; None for none."""
    if all(t is None for t in others):
        return None
    found, segmented = [], any(t is not None for t in others[8:])
    for name, t in zip(_prepared.OTHERS if segmented else _prepared.OTHERS[:8], others):
        if t is not None:
            make = _tensors.segments if name.startswith("seg") else _tensors.lengths if name in _prepared.OTHERS[4:] else _tensors.adopt
            t = make(t, name)
            t = t.resolve_neg() if isinstance(t, Tensor) else torch.from_numpy(np.array(t))
        found.append(t)
    return tuple(found)


def _op_seed(options, seed, offset, q):
    return _seed(seed, offset, q) if options.dropout else None


@torch.library.custom_op("attn::forward", mutates_args=())
def _forward_op(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sink: Optional[Tensor], mask: Optional[Tensor],
                alibi: Optional[Tensor], cu_seqlens_q: Optional[Tensor], cu_seqlens_kv: Optional[Tensor], used_q: Optional[Tensor],
                used_kv: Optional[Tensor], segments_q: Optional[Tensor], segments_kv: Optional[Tensor], lengths_q: Optional[Tensor],
                lengths_kv: Optional[Tensor], seed: Optional[Tensor], offset: int, max_seqlen_q: Optional[int],
                max_seqlen_kv: Optional[int], out_dtype: Optional[torch.dtype], layout: str, causal: bool, corner: str, left: int,
                right: int, global_tokens: int, scale: Optional[float], softcap: float, dropout: float, deterministic: bool,
                tf32: bool, implementation: Optional[str], tile_q: int, tile_kv: int, splits: int, stages: int,
                tensor_cores: Optional[bool], head_first: int, batch_first: int) -> Tuple[Tensor, Tensor]:
    options = _op_options(layout, causal, corner, left, right, global_tokens, scale, softcap, dropout, deterministic, tf32,
                          implementation, tile_q, tile_kv, splits, stages, tensor_cores, head_first, batch_first)
    others = _adopted(bias, mask, alibi, sink, cu_seqlens_q, cu_seqlens_kv, used_q, used_kv, segments_q, segments_kv, lengths_q, lengths_kv)
    seed = _op_seed(options, seed, offset, q)
    call = _prepared.prepare(q, k, v, others, seed, None, options, out_dtype, max_seqlen_q, max_seqlen_kv)
    return call.forward(q, k, v, others, seed, None, True)


@_forward_op.register_fake
def _(q, k, v, bias, sink, mask, alibi, cu_seqlens_q, cu_seqlens_kv, used_q, used_kv, segments_q, segments_kv, lengths_q,
      lengths_kv, seed, offset, max_seqlen_q, max_seqlen_kv, out_dtype, layout, *rest):
    shape = (*q.shape[:-1], v.shape[-1])
    dtype = out_dtype or q.dtype
    same = q.shape[-1] == v.shape[-1]
    o = torch.empty_like(q, dtype=dtype) if same else torch.empty(shape, dtype=dtype, device=q.device)
    heads, tokens = (1, 2) if layout == "bhsd" else (2, 1)
    rows = (q.shape[1], q.shape[0]) if layout == "thd" else (q.shape[0], q.shape[heads], q.shape[tokens])
    return o, torch.empty(rows, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32, device=q.device)


@torch.library.custom_op("attn::backward", mutates_args=())
def _backward_op(dout: Tensor, dlse: Optional[Tensor], o: Tensor, lse: Tensor, need: Sequence[bool], q: Tensor, k: Tensor, v: Tensor,
                 bias: Optional[Tensor], sink: Optional[Tensor], mask: Optional[Tensor], alibi: Optional[Tensor],
                 cu_seqlens_q: Optional[Tensor], cu_seqlens_kv: Optional[Tensor], used_q: Optional[Tensor], used_kv: Optional[Tensor],
                 segments_q: Optional[Tensor], segments_kv: Optional[Tensor], lengths_q: Optional[Tensor],
                 lengths_kv: Optional[Tensor], seed: Optional[Tensor], offset: int, max_seqlen_q: Optional[int], max_seqlen_kv: Optional[int], layout: str,
                 causal: bool, corner: str, left: int, right: int, global_tokens: int, scale: Optional[float], softcap: float,
                 dropout: float, deterministic: bool, tf32: bool, implementation: Optional[str], tile_q: int, tile_kv: int,
                 splits: int, stages: int, tensor_cores: Optional[bool], head_first: int,
                 batch_first: int) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = _op_options(layout, causal, corner, left, right, global_tokens, scale, softcap, dropout, deterministic, tf32,
                          implementation, tile_q, tile_kv, splits, stages, tensor_cores, head_first, batch_first)
    others = _adopted(bias, mask, alibi, sink, cu_seqlens_q, cu_seqlens_kv, used_q, used_kv, segments_q, segments_kv, lengths_q, lengths_kv)
    seed = _op_seed(options, seed, offset, q)
    call = _prepared.prepare(q, k, v, others, seed, None, options, None if o.dtype == q.dtype else o.dtype, max_seqlen_q, max_seqlen_kv)
    found = call.backward(dout, dlse, tuple(need), q, k, v, o, lse, others, seed, True)
    return tuple(q.new_empty(0) if g is None else g for g in found)


@_backward_op.register_fake
def _(dout, dlse, o, lse, need, q, k, v, bias, sink, *rest):
    return tuple(torch.empty_like(t) if wanted else q.new_empty(0) for t, wanted in zip((q, k, v, bias, sink), need))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:16], *output)
    ctx.numbers = inputs[16:19] + inputs[20:]
    ctx.set_materialize_grads(False)


def _op_backward(ctx, dout, dlse):
    return _gradients(ctx, dout, dlse, _backward_op)


def _gradients(ctx, dout, dlse, backward):
    *tensors, o, lse = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(o)
    need = list(ctx.needs_input_grad[:5])
    found = backward(dout, dlse, o, lse, need, *tensors, *ctx.numbers)
    return (*(g if wanted else None for g, wanted in zip(found, need)), *(None,) * 34)


def _no_further(ctx, *_):
    raise RuntimeError(_SECOND)


_forward_op.register_autograd(_op_backward, setup_context=_save)
_backward_op.register_autograd(_no_further)


class _Transformed(torch.autograd.Function):
    """attn::forward under functorch's transformations (torch.func), which know no operator's own formula."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs):
        return _forward_op(*inputs)

    setup_context = staticmethod(_save)

    @staticmethod
    def backward(ctx, dout, dlse):
        return _gradients(ctx, dout, dlse, _TransformedBackward.apply)

    @staticmethod
    def jvp(ctx, *_):
        raise invalid("q", "with a forward-mode tangent, as may be others", "have none: only reverse-mode gradients exist")


class _TransformedBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs):
        return _backward_op(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = jvp = staticmethod(_no_further)


def _seed(seed, offset, q):
    """(seed, offset) as numbers, or two words on q's device that are read there."""
    if seed is None:
        seed = torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=q.device)
    if isinstance(seed, Tensor):
        if seed.device != q.device and seed.device.type != "cpu":
            raise invalid("seed", f"on {seed.device}", f"lie on the CPU or where q does, on {q.device}")
        if seed.is_cuda:
            if seed.dtype.is_floating_point or seed.numel() not in (1, 2):
                raise invalid("seed", f"{seed.dtype} of {seed.numel()} numbers", "have one or two whole numbers")
            seed = seed.detach().resolve_neg().reshape(-1).to(torch.int64)
            return seed if seed.numel() == 2 else torch.nn.functional.pad(seed, (0, 1), value=_problem.whole("offset", offset))
    return _problem.words(seed, offset)


def _refuse_tangents(tensors):
    if forward_ad._current_level >= 0:
        for name, t in tensors.items():
            if t is not None and forward_ad.unpack_dual(t).tangent is not None:
                raise invalid(name, "with a forward-mode tangent", "have none: only reverse-mode gradients exist")


def attention(q, k, v, bias, sink, out, out_dtype, offset, max_seqlen_q, max_seqlen_kv, given, more):
    """(o, lse). given: keywords of the options; more: mask, alibi, lengths and seed."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, Tensor):
            raise invalid(name, f"of type {type(t).__name__}", "be a torch tensor like the others")
    for name in ("mask", "alibi"):
        t = more[name]
        if isinstance(t, Tensor) and t.requires_grad and torch.is_grad_enabled():
            raise invalid(name, "a tensor that requires a gradient", "not require one: none exists for it")
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    if isinstance(sink, Tensor) and sink.dtype != wide:
        sink = sink.to(wide)
    if out_dtype is not None:
        if not isinstance(out_dtype, torch.dtype):
            out_dtype = getattr(torch, _tensors.type_name(out_dtype, "out_dtype"))
        if isinstance(out, Tensor) and out.dtype != out_dtype:
            raise invalid("out_dtype", out_dtype, f"be out's {out.dtype}, or be left out")
    differentiable = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (q, k, v, bias, sink))
    if out is not None and differentiable:
        raise invalid("out", "given", "be left out where gradients are wanted")
    if isinstance(out, Tensor) and out.requires_grad and torch.is_grad_enabled():
        raise invalid("out", "a tensor that requires a gradient", "not require one")
    for name, t in (("q", q), ("k", k), ("v", v)):
        if _tensors.adopt(t, name).layout != torch.strided:
            raise invalid(name, f"of layout {t.layout}", "be strided")
    if any(type(t) not in _PLAIN for t in (q, k, v)) or traced() or (q.is_meta and k.is_meta and v.is_meta):
        return _traced(q, k, v, bias, sink, out, out_dtype, offset, max_seqlen_q, max_seqlen_kv, given, more)
    q, k, v = q.resolve_neg(), k.resolve_neg(), v.resolve_neg()
    others = _adopted(bias, more["mask"], more["alibi"], sink, *(more[n] for n in _prepared.OTHERS[4:]))
    bias, sink = (None, None) if others is None else (others[0], others[3])
    _refuse_tangents({"q": q, "k": k, "v": v, "bias": bias, "sink": sink})
    options = _problem.options(**given)
    seed = _seed(more["seed"], offset, q) if options.dropout else None
    if out is not None and (not isinstance(out, Tensor) or out.is_neg()):
        raise invalid("out", "a negated view" if isinstance(out, Tensor) else f"of type {type(out).__name__}", "be a plain torch tensor")
    call = _prepared.prepare(q, k, v, others, seed, out, options, out_dtype, max_seqlen_q, max_seqlen_kv)
    if differentiable:
        return _apply(q, k, v, bias, sink, (call, others, seed, True))
    return call.forward(q, k, v, others, seed, out, True)


def _traced(q, k, v, bias, sink, out, out_dtype, offset, max_seqlen_q, max_seqlen_kv, given, more):
    if out is not None:
        raise invalid("out", "given", "be left out of traced calls")
    seed = more["seed"]
    if given["dropout"] and seed is None:
        seed = torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=q.device)
    if seed is not None and not isinstance(seed, Tensor):
        # Numbers may be symbols while a graph is made.
        words = [*(seed if isinstance(seed, (list, tuple)) else [seed]), offset][:2] if _compiling() else _problem.words(seed, offset)
        signed = [(word + 2**63) % 2**64 - 2**63 for word in words]
        seed, offset = torch.tensor(signed, dtype=torch.int64, device="cpu"), 0
    left, right = given["window"]
    forward = _forward_op if _compiling() or not _transforms() else _Transformed.apply
    return forward(q, k, v, bias, sink, more["mask"], more["alibi"], *(more[n] for n in _prepared.OTHERS[4:]), seed, offset,
                   max_seqlen_q, max_seqlen_kv, out_dtype, given["layout"], given["causal"], given["corner"], left, right,
                   given["global_tokens"], given["scale"], given["softcap"], given["dropout"], given["deterministic"],
                   given["tf32"], given["implementation"], given["tile_q"], given["tile_kv"], given["splits"], given["stages"],
                   given["tensor_cores"], given["head_first"], given["batch_first"])
