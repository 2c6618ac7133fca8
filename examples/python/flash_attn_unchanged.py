# SPDX-License-Identifier: Apache-2.0
"""Code written for flash_attn, unchanged but for two lines: a training step, a decoding step, a ring of two."""

import attn

attn.install_as_flash_attn()

import torch
from flash_attn import flash_attn_func, flash_attn_with_kvcache
from flash_attn.flash_attn_interface import _flash_attn_forward

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
torch.manual_seed(0)
q, k, v = (torch.randn(2, 64, heads, 32, device=device, dtype=dtype, requires_grad=True) for heads in (8, 2, 2))

# Training: o (batch, tokens, heads, dim), gradients by autograd.
o = flash_attn_func(q, k, v, causal=True)
o.float().square().mean().backward()
print("o", tuple(o.shape), "dq", tuple(q.grad.shape))

# Decoding: one new token after 63 of a cache that holds 128 gives the last row of the above.
with torch.no_grad():
    cache_k, cache_v = (torch.zeros(2, 128, 2, 32, device=device, dtype=dtype) for _ in range(2))
    cache_k[:, :63], cache_v[:, :63] = k[:, :63], v[:, :63]
    lengths = torch.full((2,), 63, dtype=torch.int32, device=device)
    last = flash_attn_with_kvcache(q[:, 63:], cache_k, cache_v, k[:, 63:], v[:, 63:], cache_seqlens=lengths, causal=True)
    difference = (last - o[:, 63:]).abs().max().item()
    print("decode differs by", difference)
    assert difference < 2e-2 and torch.equal(cache_k[:, 63], k[:, 63])

    # Ring: the second rank's rows meet its own keys, then the first rank's; the parts are merged by their lse.
    own, own_lse, _, _ = _flash_attn_forward(q[:, 32:], k[:, 32:], v[:, 32:], 0.0, None, True, -1, -1, 0.0, None, False)
    far, far_lse, _, _ = _flash_attn_forward(q[:, 32:], k[:, :32], v[:, :32], 0.0, None, False, -1, -1, 0.0, None, False)
    share = torch.sigmoid(far_lse - own_lse).transpose(1, 2).unsqueeze(-1)
    difference = (own + share * (far - own) - o[:, 32:]).abs().max().item()
    print("ring differs by", difference)
    assert difference < 2e-2
