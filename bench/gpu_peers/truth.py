"""Right or not: one key head of one sequence in float64, and the plain computation's own error beside it.

A result is right if max|error| <= 2 * max|error of the plain computation in the same type| + 2 units in the last place."""
import math
import random

import torch

from .problems import TYPES

DIGITS = {"f16": 10, "bf16": 7, "f32": 23}
NAMES = ("o", "dq", "dk", "dv")


def one_head(case, x, sequence, kv, plain):
    """o, dq of the group's heads, dk, dv; `plain` stores scores and probabilities in the input type."""
    group, scale = case.heads_q // case.heads_kv, case.dim ** -0.5
    low, wide = TYPES[case.dtype], torch.float32 if plain else torch.float64
    keep = (lambda t: t.to(low).to(wide)) if plain else (lambda t: t)
    k, v = (case.sequence(x[name], sequence)[:, kv].to(wide) for name in "kv")
    tokens_q, tokens = case.sequence(x["q"], sequence).shape[0], k.shape[0]
    dk, dv, o, dq = torch.zeros_like(k), torch.zeros_like(v), [], []
    rows = max(64, min(tokens_q, 2 ** 26 // tokens))
    for head in range(kv * group, (kv + 1) * group):
        for begin in range(0, tokens_q, rows):
            end = min(begin + rows, tokens_q)
            q, dout = (case.sequence(x[name], sequence)[begin:end, head].to(wide) for name in ("q", "dout"))
            columns = case.columns(begin, end, tokens)
            some_k, some_v = k[columns], v[columns]
            s = keep(q @ some_k.T) * scale
            hidden = case.hidden(torch.arange(begin, end, device="cuda"), columns)
            if hidden is not None:
                s.masked_fill_(hidden, -math.inf)
            p = torch.softmax(s, dim=-1)
            del s, hidden
            out = keep(keep(p) @ some_v)
            dp = keep(dout @ some_v.T)
            ds = keep(p * (dp - (out * dout).sum(-1, keepdim=True)))
            o.append(out)
            dq.append(keep(ds @ some_k * scale))
            dk.index_add_(0, columns, ds.T @ q * scale)
            dv.index_add_(0, columns, keep(p).T @ dout)
    stack = lambda parts: torch.cat(parts).reshape(group, tokens_q, case.dim).transpose(0, 1)
    return stack(o), stack(dq), keep(dk), keep(dv)


class Truth:
    def __init__(self, case, x):
        self.case = case
        self.sequence, self.kv = random.randrange(case.batch), random.randrange(case.heads_kv)
        self.exact = one_head(case, x, self.sequence, self.kv, False)
        plain = one_head(case, x, self.sequence, self.kv, True)
        self.allowed = []
        for want, got in zip(self.exact, plain):
            largest = max(want.abs().max().item(), 1e-30)
            unit = 2.0 ** (math.floor(math.log2(largest)) - DIGITS[case.dtype])
            self.allowed.append(2 * (got - want).abs().max().item() + 2 * unit)

    def excess(self, results, backward):
        """Largest error over what is allowed; above 1 it is wrong."""
        group = self.case.heads_q // self.case.heads_kv
        heads = slice(self.kv * group, (self.kv + 1) * group)
        worst = 0.0
        for result, place, n in zip(results, [heads, self.kv, self.kv] if backward else [heads], (1, 2, 3) if backward else (0,)):
            got = self.case.sequence(result, self.sequence)[:, place].to(torch.float64)
            error = (got - self.exact[n]).abs().max().item()
            worst = max(worst, error / self.allowed[n] if math.isfinite(error) else math.inf)
        return worst


def root_mean_square(case, x, results):
    """RMS errors of o, dq, dk, dv over all heads of the only sequence, by name; None in `results`: not there.
    `results` may hold several contenders' lists, so that float64 runs once a head."""
    sums = [[0.0] * 4 for _ in results]
    plain_sums = [0.0] * 4
    group = case.heads_q // case.heads_kv
    count = [0] * 4
    for kv in range(case.heads_kv):
        exact, plain = (one_head(case, x, 0, kv, which) for which in (False, True))
        for n, want in enumerate(exact):
            place = slice(kv * group, (kv + 1) * group) if n < 2 else kv
            count[n] += want.numel()
            plain_sums[n] += (plain[n] - want).square().sum().item()
            for mine, sum_ in zip(results, sums):
                sum_[n] += (mine[n][0][:, place].to(torch.float64) - want).square().sum().item()
    root = lambda sum_: {name: math.sqrt(s / c) for name, s, c in zip(NAMES, sum_, count)}
    return [root(s) for s in sums], root(plain_sums)
