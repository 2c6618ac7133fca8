"""libattn's C interface through ctypes: as much of it as the benchmarks use, over PyTorch's tensors.

Size stamps let the structs end where the fields used here end."""
import ctypes

import torch


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("field", ctypes.c_char * 28), ("message", ctypes.c_char * 224)]


def _fields(text):
    """Names by type: 'p' a pointer, 'i' 64 bits, 'n' an int, 's' a string."""
    kinds = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "n": ctypes.c_int, "s": ctypes.c_char_p}
    out = [("struct_size", ctypes.c_size_t)]
    for group in text.split(";"):
        kind, names = group.split(":")
        out += [(name, kinds[kind.strip()]) for name in names.split()]
    return out


class Config(ctypes.Structure):
    _fields_ = _fields("s: device; n: threads; s: max_isa; p: log log_user allocate release allocator_user;"
                       "s: cache kernels nvrtc")


class Hints(ctypes.Structure):
    _fields_ = _fields("s: implementation; i: block_q block_kv splits")


class PlanInfo(ctypes.Structure):
    _fields_ = _fields("s: implementation; n: threads; i: block_q block_kv splits")


class Args(ctypes.Structure):
    _fields_ = _fields("p: q k v o lse bias mask alibi sink cu_seqlens_q cu_seqlens_kv used_q used_kv segments_q"
                       " segments_kv; i: n_segments_q n_segments_kv; p: lengths_q lengths_kv;"
                       "i: seed offset head_first batch_first; p: dout dlse delta dq dk dv dbias dsink")


def stamped(kind, **fields):
    return kind(struct_size=ctypes.sizeof(kind), **fields)


class Library:
    PROBLEM_ROOM = 8192  # bytes, more than attn_problem has; the library fills it from text

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.attn_plan_workspace.restype = ctypes.c_size_t
        self.c.attn_plan_workspace.argtypes = [ctypes.c_void_p]
        self.c.attn_plan_destroy.argtypes = self.c.attn_context_destroy.argtypes = [ctypes.c_void_p]
        self.c.attn_plan_describe.restype = ctypes.c_size_t
        self.c.attn_plan_describe.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        for name in ("attn_forward", "attn_backward"):
            getattr(self.c, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                              ctypes.c_void_p, ctypes.c_void_p]

    def call(self, function, *args):
        error = Error()
        if getattr(self.c, function)(*args, ctypes.byref(error)):
            raise RuntimeError(f"{function}: {error.field.decode()} {error.message.decode()}")

    def context(self, cache=None, device="cuda", threads=0):
        context = ctypes.c_void_p()
        config = stamped(Config, device=device.encode(), threads=threads, cache=cache.encode() if cache is not None else None)
        self.call("attn_context_create", ctypes.byref(context), ctypes.byref(config))
        return context


class Plan:
    """One plan on a GPU; its workspace comes from PyTorch's allocator."""

    def __init__(self, library, context, text, implementation=None):
        self.library, self.handle = library, ctypes.c_void_p()
        problem = ctypes.create_string_buffer(Library.PROBLEM_ROOM)
        library.call("attn_problem_parse", problem, text.encode())
        hints = stamped(Hints, implementation=implementation.encode() if implementation else None)
        library.call("attn_plan_create", ctypes.byref(self.handle), context, problem, ctypes.byref(hints))
        self.function = "attn_backward" if text.startswith("bwd") else "attn_forward"
        self.workspace_size = library.c.attn_plan_workspace(self.handle)
        self.workspace = None
        info = stamped(PlanInfo)
        library.call("attn_plan_query", self.handle, ctypes.byref(info))
        self.implementation = info.implementation.decode()
        self.tile = f"{info.block_q}x{info.block_kv}"

    def bind(self, **tensors):
        """Pointers are taken once; the tensors must stay alive."""
        self.tensors = tensors
        self.args = stamped(Args, **{name: tensor.data_ptr() for name, tensor in tensors.items()})
        self.workspace = torch.empty(self.workspace_size + 64, dtype=torch.uint8, device="cuda")
        start = (self.workspace.data_ptr() + 63) // 64 * 64
        self.error = Error()
        self.run_args = (self.handle, ctypes.addressof(self.args), start, self.workspace_size)
        self.c_run = getattr(self.library.c, self.function)

    def run(self):
        if self.c_run(*self.run_args, torch.cuda.current_stream().cuda_stream, ctypes.addressof(self.error)):
            raise RuntimeError(f"{self.function}: {self.error.field.decode()} {self.error.message.decode()}")

    def describe(self):
        text = ctypes.create_string_buffer(16384)
        self.library.c.attn_plan_describe(self.handle, text, len(text))
        return text.value.decode()

    def close(self):
        self.library.c.attn_plan_destroy(self.handle)
        self.workspace = None
