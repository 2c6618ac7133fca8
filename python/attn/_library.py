# SPDX-License-Identifier: Apache-2.0
"""Finds libattn and declares its interface. Structs mirror include/attn/attn.h field by field.

The library has no OpenMP runtime of its own: it takes the process's. A runtime of PyTorch's, where PyTorch is
installed, is loaded first, so that both share one set of threads."""
import ctypes
import os
import sys
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

F32, F16, BF16, F64, U8 = 1, 2, 3, 4, 16
DENSE, PACKED, SEGMENTS = 0, 1, 2
CAUSAL, WINDOW, GLOBALS = 1, 2, 4
HAS_SCALE, USED_Q, USED_KV, ACCUMULATE, DETERMINISTIC, ALLOW_TF32, DEVICE_LENGTHS, DEVICE_SEED, CLEAR_REST = (1 << n for n in range(9))


class Status(Structure):
    _fields_ = [("status", c_int), ("field", c_char * 28), ("message", c_char * 224)]


class Layout(Structure):
    _fields_ = [("dtype", c_int), ("stride", c_int64 * 4)]


class Band(Structure):
    _fields_ = [("kind", c_uint32), ("corner", c_int), ("left", c_int64), ("right", c_int64), ("globals", c_int64)]


def _fields(kind, names):
    return [(name, kind) for name in names.split()]


class Problem(Structure):
    _fields_ = (
        [("struct_size", c_size_t), ("pass_", c_int), ("flags", c_uint32)]
        + _fields(c_int64, "batch heads_q heads_kv tokens_q tokens_kv dim_qk dim_v")
        + _fields(c_int, "rows_q rows_kv")
        + _fields(c_int64, "total_q total_kv segments_q segments_kv")
        + [("band", Band)]
        + _fields(c_float, "scale softcap dropout")
        + _fields(Layout, "q k v o lse bias mask alibi sink dout dq dk dv dlse dbias")
    )


class Config(Structure):
    _fields_ = [("struct_size", c_size_t), ("device", c_char_p), ("threads", c_int), ("max_isa", c_char_p)] + _fields(
        c_void_p, "log log_user allocate release allocator_user"
    ) + _fields(c_char_p, "cache kernels nvrtc") + [("options", c_uint32)]


class Hints(Structure):
    _fields_ = [("struct_size", c_size_t), ("implementation", c_char_p)] + _fields(
        c_int64, "block_q block_kv splits stages") + [("tensor_cores", c_int)]


class Args(Structure):
    _fields_ = (
        [("struct_size", c_size_t)]
        + _fields(c_void_p, "q k v o lse bias mask alibi sink cu_seqlens_q cu_seqlens_kv used_q used_kv segments_q segments_kv")
        + _fields(c_int64, "n_segments_q n_segments_kv")
        + _fields(c_void_p, "lengths_q lengths_kv")
        + _fields(c_uint64, "seed offset")
        + _fields(c_int64, "head_first batch_first")
        + _fields(c_void_p, "dout dlse delta dq dk dv dbias dsink status device_seed")
    )


class MergeArgs(Structure):
    _fields_ = [("struct_size", c_size_t)] + _fields(c_int64, "batch heads tokens dim") + _fields(Layout, "o lse result") + [
        ("parts", c_int64)] + _fields(c_void_p, "o_parts lse_parts o_result lse_result")


def _candidates():
    if os.environ.get("ATTN_LIBRARY"):
        return [os.environ["ATTN_LIBRARY"]]
    here = os.path.dirname(os.path.abspath(__file__))
    return [os.path.join(here, "libattn.so"), os.path.join(here, "..", "..", "build", "libattn.so")]


def _bring_openmp():
    """One OpenMP runtime for the process: that which is there, else PyTorch's, else the system's, else none."""
    if hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return
    places = [os.path.join(folder, "torch", "lib", "libgomp.so.1") for folder in sys.path if folder]
    for path in [path for path in places if os.path.exists(path)][:1] + ["libgomp.so.1"]:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            return
        except OSError:
            pass


def _load():
    _bring_openmp()
    tried = _candidates()
    for path in tried:
        if os.path.exists(path):
            return ctypes.CDLL(path), os.path.realpath(path)
    raise ImportError("libattn.so is not there; looked for " + ", ".join(tried))


library, path = _load()


def _declare(name, result, *arguments):
    function = getattr(library, name)
    function.restype = result
    function.argtypes = arguments
    return function


_error = POINTER(Status)
version = _declare("attn_version", c_int)
status_text = _declare("attn_status_text", c_char_p, c_int)
context_create = _declare("attn_context_create", c_int, POINTER(c_void_p), POINTER(Config), _error)
context_destroy = _declare("attn_context_destroy", None, c_void_p)
plan_create = _declare("attn_plan_create", c_int, POINTER(c_void_p), c_void_p, POINTER(Problem), POINTER(Hints), _error)
plan_destroy = _declare("attn_plan_destroy", None, c_void_p)
plan_workspace = _declare("attn_plan_workspace", c_size_t, c_void_p)
plan_describe = _declare("attn_plan_describe", c_size_t, c_void_p, c_char_p, c_size_t)
problem_format = _declare("attn_problem_format", c_size_t, POINTER(Problem), c_char_p, c_size_t)
forward = _declare("attn_forward", c_int, c_void_p, POINTER(Args), c_void_p, c_size_t, c_void_p, _error)
backward = _declare("attn_backward", c_int, c_void_p, POINTER(Args), c_void_p, c_size_t, c_void_p, _error)
merge = _declare("attn_merge", c_int, POINTER(MergeArgs), _error)
status_word = _declare("attn_status_word", c_int, c_int32, _error)
