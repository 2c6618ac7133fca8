"""Contenders on one problem's tensors. run() is what is timed; finish() waits for it; forward() gives o, gradients() dq, dk,
dv, laid out as q, k and v are; close() lets go. A constructor raises where its contender lacks the form or is not there.

All but FlashAttention-3's are called as a user of PyTorch calls them, ours through the package `attn` (or straight through
the C interface, with prebuilt plans: --ours direct); backward is torch.autograd.grad on a kept graph."""
import os
import sys

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import flash3
from .table import ROOT

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


class Autograd:
    """attend() gives o in the layout of the inputs; gradients come from its graph."""

    def __init__(self, name, case, x, backward, turn=lambda t: t):
        self.name, self.detail, self.case, self.backward, self.turn = name, "", case, backward, turn
        self.starts = x.get("starts")
        self.inputs = [turn(x[n]).detach().requires_grad_(backward) for n in "qkv"]
        self.dout = turn(x["dout"])
        self.result = None
        if backward:
            with torch.enable_grad():
                self.result = self.attend()
        self.run = self.differentiate if backward else self.attend_only

    def attend_only(self):
        with torch.no_grad():
            return self.attend()

    def differentiate(self):
        return torch.autograd.grad(self.result, self.inputs, self.dout, retain_graph=True)

    def finish(self):
        torch.cuda.synchronize()

    def forward(self):
        return self.turn(self.attend_only())

    def gradients(self):
        return [self.turn(g) for g in self.differentiate()]

    def close(self):
        self.inputs = self.result = self.dout = self.run = None


class Ours(Autograd):
    """Through the package."""

    def __init__(self, name, case, x, backward, options):
        import attn

        self.attention = attn.attention
        self.options = {"causal": case.causal, "global_tokens": case.first, "deterministic": case.deterministic,
                        "implementation": options.implementation}
        if case.window:
            self.options["window"] = (case.window - 1, 0)
        if case.lengths:
            self.options.update(layout="thd", cu_seqlens_q=x["starts"], cu_seqlens_kv=x["starts"], max_seqlen_q=case.tokens,
                                max_seqlen_kv=case.tokens)
        super().__init__(name, case, x, backward)
        self.run()
        plans = sys.modules["attn._problem"]._plans
        self.detail = plan_words(next(reversed(plans.values())).describe())

    def attend(self):
        return self.attention(*self.inputs, **self.options)


def plan_words(text):
    """Implementation and tile from a plan's description."""
    fields = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
    tile = fields.get("tile", "").split()
    size = f" {tile[0]}x{tile[3]}" if len(tile) > 3 else ""
    return fields.get("implementation", "?").split()[0] + size


class OursDirect:
    """Through the C interface: the cost of a call without Python's."""

    def __init__(self, name, case, x, backward, options):
        sys.path.insert(0, os.path.join(ROOT, "bench"))
        import attn_ctypes

        if not hasattr(OursDirect, "library"):
            OursDirect.library = attn_ctypes.Library(options.library)
            OursDirect.context = OursDirect.library.context()
        self.name, self.case = name, case
        heads_first = (case.heads_q, sum(case.lengths)) if case.lengths else (case.batch, case.heads_q, case.queries)
        self.o = torch.empty_like(x["q"])
        self.lse = torch.empty(heads_first, dtype=torch.float32, device="cuda")
        tensors = {"q": x["q"], "k": x["k"], "v": x["v"], "o": self.o, "lse": self.lse}
        if case.lengths:
            tensors.update(cu_seqlens_q=x["starts"], cu_seqlens_kv=x["starts"])
        self.plans = [attn_ctypes.Plan(self.library, self.context, case.text(False), options.implementation)]
        self.plans[0].bind(**tensors)
        if backward:
            self.out = [torch.empty_like(x[n]) for n in "qkv"]
            self.plans.append(attn_ctypes.Plan(self.library, self.context, case.text(True), options.implementation))
            self.plans[1].bind(**tensors, dout=x["dout"], dq=self.out[0], dk=self.out[1], dv=self.out[2])
            self.plans[0].run()
        self.run = self.plans[-1].run
        self.detail = self.plans[-1].implementation + " " + self.plans[-1].tile

    def finish(self):
        torch.cuda.synchronize()

    def forward(self):
        self.plans[0].run()
        return self.o

    def gradients(self):
        self.plans[1].run()
        return self.out

    def close(self):
        for plan in self.plans:
            plan.close()
        self.plans, self.run = [], None


class Sdpa(Autograd):
    """scaled_dot_product_attention by one backend, over transposed views."""

    def __init__(self, name, case, x, backward):
        if case.lengths or case.window:
            raise NotImplementedError("packed lengths and windows are not its")
        super().__init__(name, case, x, backward, lambda t: t.transpose(1, 2))

    def attend(self):
        with sdpa_kernel(BACKENDS[self.name]):
            return functional.scaled_dot_product_attention(*self.inputs, is_causal=self.case.causal,
                                                           enable_gqa=self.case.heads_q != self.case.heads_kv)


class Flex(Autograd):
    def __init__(self, name, case, x, backward):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if case.lengths:
            raise NotImplementedError("packed lengths are not measured")
        torch._dynamo.reset()
        self.flex, self.mask = torch.compile(flex_attention, dynamic=False), None
        width, first = case.window or case.tokens, case.first
        if case.causal:
            def visible(b, h, i, j):
                return ((i - j < width) | (j < first)) & (i >= j)

            self.mask = create_block_mask(visible, None, None, case.queries, case.tokens, device="cuda", _compile=True)
        super().__init__(name, case, x, backward, lambda t: t.transpose(1, 2))

    def attend(self):
        return self.flex(*self.inputs, block_mask=self.mask, enable_gqa=self.case.heads_q != self.case.heads_kv)


class Flash4(Autograd):
    """FlashAttention-4 of the package flash-attn-4."""

    def __init__(self, name, case, x, backward):
        from flash_attn.cute.interface import flash_attn_func, flash_attn_varlen_func

        self.options = {"causal": case.causal, "deterministic": case.deterministic}
        if case.first:
            raise NotImplementedError("global tokens are not its")
        if case.window:
            self.options["window_size"] = (case.window - 1, 0)
        self.function = flash_attn_func
        if case.lengths:
            self.function = flash_attn_varlen_func
            self.options.update(cu_seqlens_q=x["starts"], cu_seqlens_k=x["starts"], max_seqlen_q=case.tokens,
                                max_seqlen_k=case.tokens)
        super().__init__(name, case, x, backward)

    def attend(self):
        out = self.function(*self.inputs, **self.options)
        return out[0] if isinstance(out, tuple) else out


class Graph:
    """A contender over several sets of tensors, all launches captured in one graph: for calls that take the device less
    time than the host, and that shall find nothing in the second-level cache."""

    def __init__(self, members):
        self.name, self.detail, self.members = members[0].name, members[0].detail, members
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for member in members:
                member.run()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.kept = [member.run() for member in members]
        self.run = self.graph.replay

    def finish(self):
        torch.cuda.synchronize()

    def close(self):
        self.graph = self.kept = self.run = None
        for member in self.members:
            member.close()


def make(name, case, x, backward, options):
    if name.startswith("libattn"):
        return (OursDirect if options.ours == "direct" else Ours)(name, case, x, backward, options)
    if name == "fa3":
        return flash3.Jax(name, case, x, backward)
    if name == "fa3-vllm":
        return flash3.Vllm(name, case, x, backward)
    kinds = {"flex": Flex, "fa4": Flash4}
    return kinds.get(name, Sdpa)(name, case, x, backward)
