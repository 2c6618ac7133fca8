# SPDX-License-Identifier: Apache-2.0
"""PyTorch: gradients, and custom operators for what traces instead of running.

Eager calls on plain tensors go through an autograd.Function to the library; under torch.compile, export and for tensor
subclasses the operators attn::forward and attn::backward stand for them. Work is queued in the current stream of the
tensors' device, workspace is the caching allocator's, and nothing waits for the device."""
from typing import Optional, Tuple

import torch
from torch import Tensor

from . import _library as lib
from . import _problem, _run
from ._errors import invalid, raise_status

_RING = 64
_rings = {}


def workspace(device, size):
    with torch.cuda.device(device):
        space = torch.empty(size, dtype=torch.uint8, device=device) if size else None
        return space, space.data_ptr() if size else None, torch.cuda.current_stream(device).cuda_stream


class _Ring:
    """Status words of calls whose lengths lie on the device, and their copies in pinned memory, which arrive by themselves."""

    def __init__(self, device):
        self.words = torch.zeros(_RING, dtype=torch.int32, device=device)
        self.seen = torch.zeros(_RING, dtype=torch.int32, pin_memory=True)
        self.next = 0

    def look(self):
        bad = self.seen.nonzero()
        if len(bad):
            word = int(self.seen[bad[0]])
            self.seen.zero_()
            error = lib.Status()
            lib.status_word(word, error)
            raise_status(error)


def status_word(device):
    ring = _rings.get(device)
    if ring is None:
        ring = _rings[device] = _Ring(device)
    if not torch.cuda.is_current_stream_capturing():
        ring.look()
    ring.next = (ring.next + 1) % _RING
    return ring.words[ring.next:ring.next + 1]


def note_status(word):
    at = word.storage_offset()
    _rings[word.device].seen[at:at + 1].copy_(word, non_blocking=True)


def check_device():
    """Waits for the devices and raises what earlier calls found wrong with lengths that lie there."""
    for device, ring in list(_rings.items()):
        torch.cuda.synchronize(device)
        ring.look()


def _gradients(options, more, dout, q, k, v, bias, sink, o, lse, dlse, need):
    if dout is None:
        dout = torch.zeros((), dtype=o.dtype, device=o.device).expand(o.shape)
    if dlse is not None and dlse.dtype != lse.dtype:
        dlse = dlse.to(lse.dtype)
    need = [name for name, wanted in zip(("dq", "dk", "dv", "dbias", "dsink"), need) if wanted]
    found = _run.backward(dout, q, k, v, o, lse, options=options, dlse=dlse, bias=bias, sink=sink, need=need, **more)
    if bias is not None and "dbias" in found:
        found["dbias"] = found["dbias"].to(bias.dtype)
    return [found.get(name) for name in ("dq", "dk", "dv", "dbias", "dsink")]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, sink, options, out_dtype, more):
        o, lse = _run.forward(q, k, v, options=options, out_dtype=out_dtype, bias=bias, sink=sink, **more)
        ctx.save_for_backward(q, k, v, bias, sink, o, lse)
        ctx.options, ctx.more = options, more
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, bias, sink, o, lse = ctx.saved_tensors
        if dout is None and dlse is None:
            return (None,) * 8
        found = _gradients(ctx.options, ctx.more, dout, q, k, v, bias, sink, o, lse, dlse, ctx.needs_input_grad[:5])
        return (*found, None, None, None)


_TENSORS = ("mask", "alibi", "cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv", "seed")


def _op_options(layout, causal, corner, left, right, global_tokens, scale, softcap, dropout, deterministic, tf32, implementation,
                tile_q, tile_kv, splits, stages, tensor_cores):
    return _problem.options(layout=layout, causal=causal, corner=corner, window=(left, right), global_tokens=global_tokens,
                            scale=scale, softcap=softcap, dropout=dropout, deterministic=deterministic, tf32=tf32,
                            implementation=implementation, tile_q=tile_q, tile_kv=tile_kv, splits=splits, stages=stages,
                            tensor_cores=tensor_cores)


@torch.library.custom_op("attn::forward", mutates_args=())
def _forward_op(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sink: Optional[Tensor], mask: Optional[Tensor],
                alibi: Optional[Tensor], cu_seqlens_q: Optional[Tensor], cu_seqlens_kv: Optional[Tensor], used_q: Optional[Tensor],
                used_kv: Optional[Tensor], seed: Optional[Tensor], offset: int, max_seqlen_q: Optional[int],
                max_seqlen_kv: Optional[int], out_dtype: Optional[torch.dtype], layout: str, causal: bool, corner: str, left: int,
                right: int, global_tokens: int, scale: Optional[float], softcap: float, dropout: float, deterministic: bool,
                tf32: bool, implementation: Optional[str], tile_q: int, tile_kv: int, splits: int, stages: int,
                tensor_cores: Optional[bool]) -> Tuple[Tensor, Tensor]:
    options = _op_options(layout, causal, corner, left, right, global_tokens, scale, softcap, dropout, deterministic, tf32,
                          implementation, tile_q, tile_kv, splits, stages, tensor_cores)
    return _run.forward(q, k, v, options=options, out_dtype=out_dtype, bias=bias, sink=sink, mask=mask, alibi=alibi,
                        cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, used_q=used_q, used_kv=used_kv, seed=seed,
                        offset=offset, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv)


@_forward_op.register_fake
def _(q, k, v, bias, sink, mask, alibi, cu_seqlens_q, cu_seqlens_kv, used_q, used_kv, seed, offset, max_seqlen_q, max_seqlen_kv,
      out_dtype, layout, *rest):
    shape = (*q.shape[:-1], v.shape[-1])
    dtype = out_dtype or q.dtype
    same = q.shape[-1] == v.shape[-1]
    o = torch.empty_like(q, dtype=dtype) if same else torch.empty(shape, dtype=dtype, device=q.device)
    heads, tokens = (1, 2) if layout == "bhsd" else (2, 1)
    rows = (q.shape[1], q.shape[0]) if layout == "thd" else (q.shape[0], q.shape[heads], q.shape[tokens])
    return o, torch.empty(rows, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32, device=q.device)


@torch.library.custom_op("attn::backward", mutates_args=())
def _backward_op(dout: Tensor, dlse: Optional[Tensor], o: Tensor, lse: Tensor, need: list[bool], q: Tensor, k: Tensor, v: Tensor,
                 bias: Optional[Tensor], sink: Optional[Tensor], mask: Optional[Tensor], alibi: Optional[Tensor],
                 cu_seqlens_q: Optional[Tensor], cu_seqlens_kv: Optional[Tensor], used_q: Optional[Tensor], used_kv: Optional[Tensor],
                 seed: Optional[Tensor], offset: int, max_seqlen_q: Optional[int], max_seqlen_kv: Optional[int], layout: str,
                 causal: bool, corner: str, left: int, right: int, global_tokens: int, scale: Optional[float], softcap: float,
                 dropout: float, deterministic: bool, tf32: bool, implementation: Optional[str], tile_q: int, tile_kv: int,
                 splits: int, stages: int, tensor_cores: Optional[bool]) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = _op_options(layout, causal, corner, left, right, global_tokens, scale, softcap, dropout, deterministic, tf32,
                          implementation, tile_q, tile_kv, splits, stages, tensor_cores)
    more = dict(mask=mask, alibi=alibi, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, used_q=used_q, used_kv=used_kv,
                seed=seed, offset=offset, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv)
    found = _gradients(options, more, dout, q, k, v, bias, sink, o, lse, dlse, need)
    return tuple(q.new_empty(0) if g is None else g for g in found)


@_backward_op.register_fake
def _(dout, dlse, o, lse, need, q, k, v, bias, sink, *rest):
    return tuple(torch.empty_like(t) if wanted else q.new_empty(0) for t, wanted in zip((q, k, v, bias, sink), need))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:12], *output)
    ctx.numbers = inputs[12:15] + inputs[16:]
    ctx.set_materialize_grads(False)


def _op_backward(ctx, dout, dlse):
    *tensors, o, lse = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(o)
    need = list(ctx.needs_input_grad[:5])
    found = _backward_op(dout, dlse, o, lse, need, *tensors, *ctx.numbers)
    return (*(g if wanted else None for g, wanted in zip(found, need)), *(None,) * 28)


_forward_op.register_autograd(_op_backward, setup_context=_save)


def attention(q, k, v, bias, sink, out, out_dtype, offset, max_seqlen_q, max_seqlen_kv, given, more):
    """given: keywords of the options; more: the tensors named in _TENSORS."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, Tensor):
            raise invalid(name, f"of type {type(t).__name__}", "be a torch tensor like the others")
    for name in ("mask", "alibi"):
        t = more[name]
        if t is not None and t.requires_grad and torch.is_grad_enabled():
            raise invalid(name, "a tensor that requires a gradient", "not require one: none exists for it")
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    if sink is not None and sink.dtype != wide:
        sink = sink.to(wide)
    if given["dropout"] and more["seed"] is None:
        more["seed"] = torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=q.device)
    if isinstance(out_dtype, str):
        out_dtype = getattr(torch, out_dtype)
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, v, bias, sink))
    if out is not None and differentiable:
        raise invalid("out", "given", "be left out where gradients are wanted")
    traced = torch.compiler.is_compiling()
    if traced or any(type(t) not in (Tensor, torch.nn.Parameter) for t in (q, k, v)):
        if out is not None:
            raise invalid("out", "given", "be left out of traced calls")
        seed = more["seed"]
        if seed is not None and not isinstance(seed, Tensor):
            seed, offset = torch.tensor([seed, offset], dtype=torch.int64), 0
        left, right = given["window"]
        cores = given["tensor_cores"]
        return _forward_op(q, k, v, bias, sink, more["mask"], more["alibi"], more["cu_seqlens_q"], more["cu_seqlens_kv"],
                           more["used_q"], more["used_kv"], seed, offset, max_seqlen_q, max_seqlen_kv, out_dtype, given["layout"],
                           given["causal"], given["corner"], left, right, given["global_tokens"], given["scale"],
                           given["softcap"], given["dropout"], given["deterministic"], given["tf32"], given["implementation"],
                           given["tile_q"], given["tile_kv"], given["splits"], given["stages"], cores)
    options = _problem.options(**given)
    more.update(offset=offset, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv)
    if differentiable:
        return _Attention.apply(q, k, v, bias, sink, options, out_dtype, more)
    return _run.forward(q, k, v, options=options, out=out, out_dtype=out_dtype, bias=bias, sink=sink, **more)
