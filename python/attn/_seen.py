# SPDX-License-Identifier: Apache-2.0
"""What rows of a transformers model see, kept as rules instead of a matrix.

A `Seen` stands where transformers passes a boolean mask of (batch, 1, rows, keys). It has that shape and no storage: its
rules (causal, window, used lengths, sequences packed in a row, padding) go to attn as options, in memory linear in the
tokens. Any other operation of PyTorch on it works on the boolean tensor, which is made then, so code that looks at masks
sees the usual one.

`of` reads the rules from transformers' mask functions. It believes a function only by name and by what it answers at its
edges, and what it does not know stays a tensor."""
import torch
from torch.utils._pytree import tree_map

_ROOM = "transformers.masking_utils"


class Seen(torch.Tensor):
    """causal, window: as attn's, keys counted from the first of the mask; ahead: keys before the first row's own; keys:
    how many of them any row sees. At most one of: used (lengths of the keys), and rows with their cu_seqlens: (indices of
    rows in (batch * tokens) or None for all, cu_seqlens, longest) for q and for the keys."""

    @staticmethod
    def __new__(cls, shape, device, **_):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)

    def __init__(self, shape, device, *, dense, causal, window, ahead, keys, used=None, rows=None):
        self.dense, self.causal, self.window, self.ahead, self.keys, self.used, self.rows = dense, causal, window, ahead, keys, used, rows

    @property
    def padded(self):
        return self.used is not None or (self.rows is not None and self.rows[1][0] is not None)

    def fits(self, q, k):
        return (q.shape[0], q.shape[2]) == (self.shape[0], self.shape[2]) and k.shape[2] >= self.keys and q.device == self.device

    def moved(self, device):
        to = lambda t: t.to(device) if isinstance(t, torch.Tensor) else t
        return Seen(self.shape, device, dense=lambda: self.dense().to(device), causal=self.causal, window=self.window, ahead=self.ahead,
                    keys=self.keys, used=to(self.used), rows=tree_map(to, self.rows))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") and kwargs.get("dtype") in (None, torch.bool):
            return args[0].moved(kwargs["device"])
        plain = lambda t: t.dense() if isinstance(t, Seen) else t
        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


def _parts(function):
    """The functions of which this one is the intersection, each with its name and the values it holds."""
    name = getattr(function, "__qualname__", "") if getattr(function, "__module__", "") == _ROOM else ""
    held = {}
    if getattr(function, "__closure__", None):
        held = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__)))
    if name == "and_masks.<locals>.and_mask":
        return [part for f in held["mask_functions"] for part in _parts(f)]
    if name == "remap_positions_for_packed_sequence.<locals>.inner_mask":
        return [(function, name.split(".")[0], held), *_parts(held["mask_function"])]
    return [(function, name.split(".")[0], held)]


def _edges(function, row, hidden, shown):
    """Does the function hide and show those keys of a row?"""
    answers = [bool(function(0, 0, row, key)) for key in (*hidden, *shown)]
    return answers == [False] * len(hidden) + [True] * len(shown)


def _rules(function):
    """(causal, left, right, sequence numbers or None), or None where the function says something else as well."""
    causal, left, right, ids, remapped = False, -1, -1, None, []
    for f, name, held in _parts(function):
        size = held.get("sliding_window")
        if size is not None and (not isinstance(size, int) or size < 1):
            return None
        if name == "causal_mask_function" and _edges(f, 3, (4, 9), (3, 0)):
            causal = True
        elif name == "bidirectional_mask_function":
            pass
        elif name == "sliding_window_overlay" and _edges(f, 2 * size, (size,), (size + 1, 2 * size)):
            left = size - 1 if left < 0 else min(left, size - 1)
        elif name == "sliding_window_bidirectional_overlay" and _edges(f, 2 * size, (size - 1, 3 * size + 1), (size, 3 * size)):
            left = right = size
        elif name == "packed_sequence_mask_function" and ids is None:
            ids = held["packed_sequence_mask"]
        elif name == "remap_positions_for_packed_sequence":
            remapped.append(held["position_ids"])
        else:
            return None
    # Distances between rows of one sequence are the same in positions that count up within each.
    for positions in remapped:
        if ids is None or positions.shape != ids.shape:
            return None
        if not ((positions[:, 1:] - positions[:, :-1] == 1) | (ids[:, 1:] != ids[:, :-1])).all():
            return None
    return causal, left, right, ids


def _starts(sizes):
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).to(torch.int32)


def _kept(padding):
    """Rows that are no padding: their indices, cu_seqlens, and a bound of the longest."""
    return padding.flatten().nonzero().squeeze(1), _starts(padding.sum(1)), padding.shape[1]


def of(function, dense, batch, rows, keys, ahead, padding, device):
    """A Seen; None where nothing is hidden, or no more than causality from the top left; False for what stays a tensor.
    padding: (batch, keys) or None, true for keys that count."""
    rules = _rules(function)
    if rules is None:
        return False
    causal, left, right, ids = rules
    seen = ahead + rows if causal else keys
    if ahead < 0 or seen > keys or (ahead and not causal and left >= 0):
        return False
    made = dict(shape=(batch, 1, rows, keys), device=device, dense=dense, causal=causal, ahead=ahead, keys=seen,
                window=(left if left < seen - 1 else -1, right if right < seen - 1 else -1))
    if ids is not None:
        if padding is not None or ids.shape != (batch, rows) or seen != rows or ahead:
            return False
        first = torch.ones_like(ids, dtype=torch.bool)
        first[:, 1:] = ids[:, 1:] != ids[:, :-1]
        at = first.flatten().nonzero().squeeze(1)
        cu = torch.cat((at, at.new_tensor([batch * rows]))).to(torch.int32)
        longest = int(cu.diff().max())
        return Seen(**made, rows=((None, cu, longest), (None, cu, longest)))
    if padding is not None:
        padding = padding[:, :seen]
        earlier, later = padding[:, :-1], padding[:, 1:]
        full, right_only, left_only = torch.stack((padding.all(), (later <= earlier).all(), (later >= earlier).all())).tolist()
        if full:
            pass
        elif right_only and not ahead:
            return Seen(**made, used=padding.sum(1).to(torch.int32))
        elif causal and left_only:
            return Seen(**made, rows=(_kept(padding[:, ahead:]), _kept(padding)))
        elif not causal and left < 0:
            every = torch.arange(batch + 1, dtype=torch.int32, device=device) * rows
            return Seen(**made, rows=((None, every, rows), _kept(padding)))
        else:
            return False
    return None if made["window"] == (-1, -1) and not ahead else Seen(**made)
