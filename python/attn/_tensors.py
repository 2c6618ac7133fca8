# SPDX-License-Identifier: Apache-2.0
"""What the rest needs to know of a tensor, for NumPy arrays, PyTorch tensors and whatever speaks DLPack.

A `View` is plain data: address, shape, strides in elements, dtype by name, device as text."""
import sys
from collections import namedtuple

import numpy as np

from . import _library as lib
from ._errors import invalid

View = namedtuple("View", "address shape stride dtype device")
DTYPES = {"float32": lib.F32, "float16": lib.F16, "bfloat16": lib.BF16, "float64": lib.F64, "uint8": lib.U8, "bool": lib.U8}


def is_torch(x):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def without_torch(q, alike, others):
    """Where q is no torch tensor, k and v are none either, and nothing has a gradient, which would be lost."""
    if q is None or isinstance(q, str):
        raise invalid("q", repr(q), "be a NumPy array, a torch tensor or speak DLPack")
    for name, x in {**alike, **others}.items():
        if is_torch(x):
            if name in alike:
                raise invalid(name, "a torch tensor", "be of q's kind")
            if x.requires_grad:
                raise invalid(name, "a tensor that requires a gradient", "not require one where q is no torch tensor")


def adopt(x, name):
    """A NumPy array or a torch tensor that shares x's memory; lists and numbers become arrays."""
    if x is None or isinstance(x, np.ndarray):
        return x
    if is_torch(x):
        if x.is_nested:
            raise invalid(name, "a nested tensor", "be a plain one, with its sequences packed in a row or padded")
        return x
    if hasattr(x, "__dlpack__"):
        if x.__dlpack_device__()[0] == 1:
            try:
                return np.from_dlpack(x)
            except (BufferError, TypeError, RuntimeError):
                pass
        try:
            import torch
        except ImportError:
            raise invalid(name, type(x).__name__, "lie on the CPU in a type of NumPy's unless PyTorch is installed") from None
        return torch.from_dlpack(x)
    if isinstance(x, (list, tuple, int)):
        return np.asarray(x)
    raise invalid(name, f"of type {type(x).__name__}", "be a NumPy array, a torch tensor or speak DLPack")


def type_name(dtype, name):
    """Of a type of PyTorch's or NumPy's, or of its name."""
    try:
        found = str(dtype)[6:] if str(dtype).startswith("torch.") else str(dtype) if str(dtype) in DTYPES else np.dtype(dtype).name
    except TypeError:
        found = repr(dtype)
    if found not in DTYPES:
        raise invalid(name, found, "be a type of floating-point numbers or its name")
    return found


def view(x, name):
    if is_torch(x):
        if str(x.layout) != "torch.strided":
            raise invalid(name, f"of layout {x.layout}", "be strided")
        if sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor(x):
            raise invalid(name, "a tensor of a torch.func transformation", "be a plain one: this call is not transformed")
        return View(x.data_ptr(), tuple(x.shape), x.stride(), str(x.dtype)[6:], str(x.device))
    size = x.dtype.itemsize
    if not x.dtype.isnative:
        raise invalid(name, f"of type {x.dtype.str}", "have this machine's order of bytes")
    if isinstance(x, np.ma.MaskedArray):
        raise invalid(name, "a masked array", "be a plain one: what it masks would be read")
    if any(s % size for s in x.strides):
        raise invalid(name, f"with strides of {x.strides} bytes", f"have strides that are multiples of {size} bytes")
    return View(x.ctypes.data, x.shape, tuple(s // size for s in x.strides), x.dtype.name, "cpu")


def in_kind(results, like):
    """Results as arrays of like's library, where it has told of it and they are none."""
    if isinstance(results[0], type(like)) or not hasattr(like, "__array_namespace__"):
        return results
    return tuple(like.__array_namespace__().from_dlpack(t) for t in results)


def empty(like, shape, dtype=None):
    """A new tensor of like's kind and device; in like's order of axes where the shape is the same."""
    dtype = dtype or view(like, "").dtype
    if is_torch(like):
        import torch
        wanted = getattr(torch, dtype)
        if tuple(shape) == tuple(like.shape):
            return torch.empty_like(like, dtype=wanted)
        return torch.empty(shape, dtype=wanted, device=like.device)
    kind = like.dtype if dtype == like.dtype.name else np.dtype(dtype)
    if tuple(shape) == like.shape:
        return np.empty_like(like, dtype=kind, subok=False)
    return np.empty(shape, kind)


def lengths(x, name):
    """cu_seqlens and used lengths: contiguous int32."""
    x = adopt(x, name)
    if x is None:
        return None
    if is_torch(x):
        import torch
        if x.dtype.is_floating_point or x.dtype == torch.bool or x.dim() != 1:
            raise invalid(name, f"{x.dtype} of {x.dim()} axes", "be a row of integers")
        if x.dtype not in (torch.int32, torch.int16, torch.int8, torch.uint8):  # what does not fit is wrong at either end
            x = x.to(torch.int64).clamp(-(2**31), 2**31 - 1)
        return x.to(torch.int32).contiguous()
    if x.dtype.kind not in "iu" or x.ndim != 1:
        raise invalid(name, f"{x.dtype} of {x.ndim} axes", "be a row of integers")
    if x.dtype != np.int32:
        x = np.clip(x.astype(np.int64), -(2**31), 2**31 - 1)
    return np.ascontiguousarray(x, dtype=np.int32)


def segments(x, name):
    """Runs of rows: contiguous int64 [n, 4]."""
    x = adopt(x, name)
    if x is None:
        return None
    torch_ = is_torch(x)
    whole = not (x.dtype.is_floating_point or x.dtype.is_complex) if torch_ else x.dtype.kind in "iu"
    if not whole or len(x.shape) != 2 or x.shape[1] != 4:
        raise invalid(name, f"{x.dtype} of shape {tuple(x.shape)}", "be whole numbers of shape (n, 4): first, rows, position, sequence")
    if torch_:
        import torch
        return x.to(torch.int64).contiguous()
    return np.ascontiguousarray(x, dtype=np.int64)


def fill(x, value):
    if is_torch(x):
        x.fill_(value)
    else:
        x[...] = value
