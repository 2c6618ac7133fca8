# SPDX-License-Identifier: Apache-2.0
"""Attention over NumPy arrays: causal with grouped heads, a window, and two sets of keys merged into their union."""

import numpy as np

import attn

random = np.random.default_rng(0)
q = random.standard_normal((1, 128, 8, 64), dtype=np.float32)  # [batch, token, head, dim]
k, v = (random.standard_normal((1, 128, 2, 64), dtype=np.float32) for _ in range(2))  # two kv heads serve eight

o, lse = attn.attention(q, k, v, causal=True, return_lse=True)
print("o", o.shape, "lse", lse.shape, "differs from float64 by", np.abs(o - attn.reference(q, k, v, causal=True)).max())

near = attn.attention(q, k, v, causal=True, window=(15, 0))
assert np.array_equal(near[:, :8], attn.attention(q[:, :8], k[:, :8], v[:, :8], causal=True))

halves = [attn.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 50), slice(50, 128))]
whole = attn.attention(q, k, v)
print("merged halves differ by", np.abs(attn.merge(halves)[0] - whole).max())
assert np.abs(attn.merge(halves)[0] - whole).max() < 1e-5
