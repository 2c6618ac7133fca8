"""Problems: sizes, masks, lengths; their text, their FLOP, their tensors, and which pairs are visible.

Tensors are [B, S, H, D], those of packed sequences [T, H, D]. FLOP are the papers': forward 4 H D for every pair, S S
pairs a sequence and half of that when causal, backward 2.5 times as much. With windows and packed lengths the visible
pairs are counted one by one."""
import dataclasses
import itertools
import random

import torch

TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


@dataclasses.dataclass(frozen=True)
class Case:
    dtype: str
    batch: int
    heads_q: int
    heads_kv: int
    tokens: int            # keys; of packed sequences the longest one's
    dim: int
    causal: bool = False
    tokens_q: int = 0      # 0: as many as keys
    window: int = 0        # keys a query sees, its own included; 0: all
    first: int = 0         # global tokens: keys that every later query sees
    lengths: tuple = ()    # packed sequences
    deterministic: bool = False
    note: str = ""         # for the table, where sizes do not tell

    @property
    def queries(self):
        return self.tokens_q or self.tokens

    def text(self, backward):
        parts = ["bwd" if backward else "fwd", self.dtype, f"b{self.batch}", f"hq{self.heads_q}", f"hk{self.heads_kv}"]
        parts += [f"s{self.tokens}"] if self.queries == self.tokens else [f"sq{self.queries}", f"skv{self.tokens}"]
        parts += [f"d{self.dim}"]
        if self.lengths:
            parts += [f"packed_q={sum(self.lengths)}", f"packed_kv={sum(self.lengths)}", "device_lengths"]
        parts += ["causal"] if self.causal else []
        parts += [f"window={self.window - 1},0"] if self.window else []
        parts += [f"globals={self.first}"] if self.first else []
        parts += ["deterministic"] if self.deterministic and backward else []
        return ":".join(parts)

    def pairs(self):
        """A head's, over the batch."""
        if self.lengths:
            return sum(n * (n + 1) // 2 if self.causal else n * n for n in self.lengths)
        if self.window:
            seen = self.tokens * self.window - self.window * (self.window - 1) // 2
            beyond = self.tokens - self.window  # rows whose window does not start with the first key
            return self.batch * (seen + sum(min(self.first, n) for n in range(1, min(beyond, self.first) + 1))
                                 + max(0, beyond - self.first) * self.first)
        return self.batch * self.queries * self.tokens * (0.5 if self.causal else 1)

    def flop(self, backward):
        return 4 * self.heads_q * self.dim * self.pairs() * (2.5 if backward else 1)

    def bytes_of_keys(self):
        return 2 * self.batch * self.heads_kv * self.tokens * self.dim * TYPES[self.dtype].itemsize

    def tensors(self, seed=1, outliers=False):
        """`outliers`: N(0, 1) + N(0, 100) * Bernoulli(0.001), 100 the variance."""
        torch.manual_seed(seed)

        def make(tokens, heads):
            shape = (sum(self.lengths),) if self.lengths else (self.batch, tokens)
            x = torch.randn(*shape, heads, self.dim, device="cuda", dtype=torch.float32 if outliers else TYPES[self.dtype])
            if outliers:
                x += 10 * torch.randn_like(x) * (torch.rand_like(x) < 0.001)
            return x.to(TYPES[self.dtype])

        x = {"q": make(self.queries, self.heads_q), "k": make(self.tokens, self.heads_kv),
             "v": make(self.tokens, self.heads_kv), "dout": make(self.queries, self.heads_q)}
        if self.lengths:
            ends = [0, *itertools.accumulate(self.lengths)]
            x["starts"] = torch.tensor(ends, dtype=torch.int32, device="cuda")
        return x

    def sequence(self, tensor, n):
        """One sequence of a tensor, [S, H, D]."""
        if self.lengths:
            start = sum(self.lengths[:n])
            return tensor[start:start + self.lengths[n]]
        return tensor[n]

    def columns(self, begin, end, tokens):
        """Keys of a sequence of `tokens` among which are all that queries begin..end-1 see."""
        high = end if self.causal else tokens
        low = max(0, begin - self.window + 1) if self.window else 0
        if low <= self.first:
            return torch.arange(high, device="cuda")
        return torch.cat((torch.arange(self.first, device="cuda"), torch.arange(low, high, device="cuda")))

    def hidden(self, rows, columns):
        """[rows, columns]: True where the mask forbids; None where it forbids nothing."""
        if not self.causal and not self.window:
            return None
        i, j = rows[:, None], columns[None, :]
        out = j > i if self.causal else torch.zeros_like(j > i)
        if self.window:
            out |= (i - j >= self.window) & (j >= self.first) & (i >= self.first)
        return out


def sweep(types, lengths):
    """16k tokens, hidden width 2048."""
    for dtype, dim, causal, tokens in itertools.product(types, (64, 128, 256), (False, True), lengths):
        yield Case(dtype, 16384 // tokens, 2048 // dim, 2048 // dim, tokens, dim, causal)


def heads():
    """The table of the QiMeng-Attention paper."""
    for heads_kv in (16, 8, 2, 1):
        yield Case("f16", 8, 16, heads_kv, 2048, 128, True)


def long_rows(lengths):
    for tokens in lengths:
        yield Case("bf16", 1, 32, 8, tokens, 128, True)


def windows():
    yield Case("bf16", 1, 32, 8, 16384, 128, True, window=256)
    yield Case("bf16", 1, 32, 8, 32768, 128, True, window=1024)
    yield Case("bf16", 1, 32, 8, 131072, 128, True, window=4096)
    yield Case("bf16", 1, 32, 8, 131072, 128, True, window=4096, first=64)


def mix(kind, total):
    """Lengths of a batch: all 4096; log-normal; one long sequence among short ones; 100,000 of 1 to 64."""
    if kind == "equal4k":
        return (4096,) * (total // 4096)
    draw, out, left = random.Random(0), [], total
    if kind == "tiny":
        return tuple(draw.randint(1, 64) for _ in range(100000))
    while left > 0:
        n = max(16, int(draw.lognormvariate(6.5, 1.2))) if kind == "lognormal" else 512 if out else 16384
        out.append(min(left, n))
        left -= out[-1]
    return tuple(out)


def packed(quick):
    shapes = [(32, 8, 128)] if quick else [(16, 16, 128), (32, 8, 128), (32, 32, 64)]
    for kind, (heads_q, heads_kv, dim) in itertools.product(("equal4k", "lognormal", "onelong"), shapes):
        lengths = mix(kind, 65536)
        yield Case("bf16", len(lengths), heads_q, heads_kv, max(lengths), dim, True, lengths=lengths, note=kind)
    lengths = mix("tiny", 0)
    yield Case("bf16", len(lengths), 2, 1, max(lengths), 128, True, lengths=lengths, note="tiny")


def decode():
    for batch, tokens in ((1, 8192), (1, 131072), (16, 8192), (64, 8192), (128, 4096)):
        yield Case("bf16", batch, 32, 8, tokens, 128, tokens_q=1)


def deterministic(quick):
    for dim, causal, tokens in itertools.product((64, 128, 256), (False, True), (2048,) if quick else (2048, 8192)):
        yield Case("bf16", 16384 // tokens, 2048 // dim, 2048 // dim, tokens, dim, causal)
    yield Case("bf16", 4, 32, 8, 4096, 128, True)


def accuracy():
    for dtype, dim, causal in itertools.product(("f16", "bf16"), (64, 128, 256), (False, True)):
        yield Case(dtype, 1, 4, 4, 4096, dim, causal)
