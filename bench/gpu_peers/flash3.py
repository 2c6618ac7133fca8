"""FlashAttention-3 from two packages: dew-flash-attn-cu13 (through JAX, on PyTorch's memory: forward and backward, dense
and packed) and the build that comes with vllm (forward of packed rows, as PyTorch operators)."""
import glob
import importlib.util
import os

import torch


class Jax:
    """Calls are compiled, one each for forward and backward, so that backward is timed alone, as everyone's."""

    def __init__(self, name, case, x, backward):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import dew_flash_attn as dew
        import jax

        if case.first or case.deterministic:
            raise NotImplementedError("global tokens and deterministic gradients are not its")
        torch.cuda.synchronize()
        self.jax, self.name, self.detail = jax, name, "jax"
        adopt = lambda t: jax.dlpack.from_dlpack(t.detach())
        q, k, v, dout = (adopt(x[n]) for n in ("q", "k", "v", "dout"))
        starts = (adopt(x["starts"]),) * 2 if case.lengths else ()
        longest = (case.tokens, case.tokens) if case.lengths else None
        window = (case.window - 1, 0) if case.window else (-1, -1)
        rest = (longest, case.dim ** -0.5, case.causal, window)
        self.attend = jax.jit(lambda q, k, v, *starts: dew._forward3(q, k, v, starts or None, *rest))
        self.args, self.last = (q, k, v, *starts), None
        self.call, self.with_ = self.attend, self.args
        if backward:
            o, lse = self.attend(*self.args)
            self.call = jax.jit(lambda dout, q, k, v, o, lse, *starts:
                                dew._backward3(dout, q, k, v, o, lse, starts or None, *rest))
            self.with_ = (dout, q, k, v, o, lse, *starts)

    def run(self):
        self.last = self.call(*self.with_)

    def finish(self):
        self.jax.block_until_ready(self.last)

    def forward(self):
        o = self.jax.block_until_ready(self.attend(*self.args))[0]
        return torch.from_dlpack(o)

    def gradients(self):
        return [torch.from_dlpack(g) for g in self.jax.block_until_ready(self.call(*self.with_))]

    def close(self):
        self.last = self.args = self.with_ = self.call = self.attend = None


def vllm_library():
    """Path of the operators' library, found without importing vllm."""
    spec = importlib.util.find_spec("vllm")
    for folder in spec.submodule_search_locations if spec else ():
        found = glob.glob(os.path.join(folder, "vllm_flash_attn", "_vllm_fa3_C*.so"))
        if found:
            return found[0]
    raise ImportError("no vllm with FlashAttention-3")


class Vllm:
    """Dense rows go in as packed ones, all of a length."""

    def __init__(self, name, case, x, backward):
        if backward or case.lengths:
            raise NotImplementedError("forward of dense rows alone is measured")
        if not hasattr(torch.ops._vllm_fa3_C, "fwd"):
            torch.ops.load_library(vllm_library())
        self.name, self.detail, self.case = name, "vllm", case
        starts = lambda tokens: torch.arange(case.batch + 1, device="cuda", dtype=torch.int32) * tokens
        self.tensors = [x[n].flatten(0, 1) for n in "qkv"]
        self.starts = starts(case.queries), starts(case.tokens)

    def run(self):
        case, none = self.case, None
        window = case.window - 1 if case.window else -1
        return torch.ops._vllm_fa3_C.fwd(
            *self.tensors, none, none, none, none, *self.starts, none, none, none, case.queries, case.tokens, none, none, none,
            none, none, none, none, none, none, case.dim ** -0.5, case.causal, window, 0 if case.window else -1, 0.0, True,
            none, 0, none, 0, none, 1, 0, none)[0]

    def finish(self):
        torch.cuda.synchronize()

    def forward(self):
        return self.run().view(self.case.batch, self.case.queries, self.case.heads_q, self.case.dim)

    def close(self):
        self.tensors = self.starts = None
