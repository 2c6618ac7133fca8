# SPDX-License-Identifier: Apache-2.0
"""libattn for Python: exact, fused attention over NumPy arrays, PyTorch tensors and whatever speaks DLPack."""
from ._errors import Error, DeviceError, InvalidError, UnsupportedError
from . import _library, _problem, _run, _tensors

__all__ = ["attention", "reference", "merge", "check_device", "info", "install_as_flash_attn", "Error", "InvalidError",
           "UnsupportedError", "DeviceError"]
__version__ = "%d.%d.%d" % (_library.version() // 10000, _library.version() // 100 % 100, _library.version() % 100)


_quick = None  # the way of calls that PyTorch's part has prepared, once that is imported


def _with_torch():
    global _quick
    from . import _torch

    _quick = _torch.quick
    return _torch


def attention(q, k, v, *, layout="bshd", causal=False, corner="bottom-right", window=(-1, -1), global_tokens=0, scale=None,
              softcap=0.0, alibi=None, bias=None, mask=None, sink=None, dropout=0.0, seed=None, offset=0, cu_seqlens_q=None,
              cu_seqlens_kv=None, max_seqlen_q=None, max_seqlen_kv=None, used_q=None, used_kv=None, deterministic=False, tf32=False,
              out=None, out_dtype=None, return_lse=False, implementation=None, tile_q=0, tile_kv=0, splits=0, stages=0,
              tensor_cores=None, segments_q=None, segments_kv=None, lengths_q=None, lengths_kv=None, head_first=0, batch_first=0):
    """o, or (o, lse) with return_lse. docs/python.md describes each argument.

    Differentiable in q, k, v, bias and sink, and through o and lse, with PyTorch."""
    if _quick is not None and segments_q is None and segments_kv is None and lengths_q is None and lengths_kv is None:
        found = _quick(q, k, v, (layout, causal, corner, window, global_tokens, scale, softcap, dropout, deterministic, tf32,
                                 implementation, tile_q, tile_kv, splits, stages, tensor_cores, head_first, batch_first), out,
                       out_dtype, return_lse, bias, mask, alibi, sink, cu_seqlens_q, cu_seqlens_kv, used_q, used_kv, max_seqlen_q,
                       max_seqlen_kv, seed, offset)
        if found is not None:
            return found
    given = dict(layout=layout, causal=causal, corner=corner, window=window, global_tokens=global_tokens, scale=scale, softcap=softcap,
                 dropout=dropout, deterministic=deterministic, tf32=tf32, implementation=implementation, tile_q=tile_q,
                 tile_kv=tile_kv, splits=splits, stages=stages, tensor_cores=tensor_cores, head_first=head_first, batch_first=batch_first)
    more = dict(mask=mask, alibi=alibi, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, used_q=used_q, used_kv=used_kv,
                segments_q=segments_q, segments_kv=segments_kv, lengths_q=lengths_q, lengths_kv=lengths_kv, seed=seed)
    if _tensors.is_torch(q):
        _torch = _with_torch()
        o, lse = _torch.attention(q, k, v, bias, sink, out, out_dtype, offset, max_seqlen_q, max_seqlen_kv, given, more)
        return (o, lse) if return_lse else o
    _tensors.without_torch(q, {"k": k, "v": v}, {**more, "bias": bias, "sink": sink, "out": out})
    o, lse = _run.forward(q, k, v, options=_problem.options(**given), out=out, out_dtype=out_dtype, bias=bias, sink=sink,
                          offset=offset, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv, **more)
    if out is None:
        o, lse = _tensors.in_kind((o, lse), q)
    return (o, lse) if return_lse else o


def reference(q, k, v, **options):
    """attention() in float64 on the CPU, for tests: arguments and results as there, gradients too."""
    wide = {"q": q, "k": k, "v": v, **options, "return_lse": True}
    for name in ("q", "k", "v", "bias", "alibi", "sink"):
        t = _tensors.adopt(wide.get(name), name)
        if t is not None:
            wide[name] = t.double().cpu() if _tensors.is_torch(t) else t.astype("float64")
    for name in ("mask", "cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv", "segments_q", "segments_kv", "lengths_q",
                 "lengths_kv", "seed"):
        if _tensors.is_torch(wide.get(name)):
            wide[name] = wide[name].cpu()
    for name in ("implementation", "tile_q", "tile_kv", "splits", "stages", "tensor_cores", "tf32", "out_dtype"):
        wide.pop(name, None)
    found = attention(**wide)
    found = found if options.get("out") is not None else _tensors.in_kind(found, q)
    return tuple(found) if options.get("return_lse") else found[0]


def merge(parts, layout="bshd"):
    """(o, lse) over the union of disjoint sets of keys from the (o, lse) over each: parts is a list of such pairs.

    The result has the parts' types. A part whose lse is -inf has no influence, whatever its o holds. No gradients. A sink
    must be in one part only."""
    from . import _merge

    return _merge.merge(parts, layout)


def check_device():
    """Waits for the GPUs in use and raises what earlier calls found wrong with lengths that lie there."""
    import sys

    torch = sys.modules.get(__name__ + "._torch")
    if torch:
        torch.check_device()


def info():
    """What is in use: version, path of the library."""
    return {"version": __version__, "library": _library.path}


def install_as_flash_attn(replace=False):
    """Makes `import flash_attn` and `import flash_attn_interface` find this package's modules of that shape.

    RuntimeError if an original has been imported already; replace=True puts ours in its place for later imports."""
    from .flash_attn import _install

    _install.install(replace)


def __getattr__(name):
    """The modules that need PyTorch are imported when they are first named."""
    if name in ("flash_attn", "flash_attn_3", "transformers"):
        import importlib

        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
