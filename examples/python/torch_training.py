# SPDX-License-Identifier: Apache-2.0
"""A layer of attention trained with PyTorch on whatever device there is: packed sequences and a sink."""

import torch

import attn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Layer(torch.nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.sink = torch.nn.Parameter(torch.zeros(heads))

    def forward(self, x, cu, longest):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        o = attn.attention(q, k, v, layout="thd", causal=True, sink=self.sink, cu_seqlens_q=cu, cu_seqlens_kv=cu,
                           max_seqlen_q=longest, max_seqlen_kv=longest)
        return self.out(o.flatten(1))


layer = Layer().to(device)
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
x = torch.randn(48, 64, device=device)
cu = torch.tensor([0, 20, 25, 48], dtype=torch.int32, device=device)  # three sequences of 20, 5 and 23 rows
target = x.roll(1, 0)
losses = []
for _ in range(30):
    optimizer.zero_grad()
    loss = (layer(x, cu, 23) - target).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, sink's gradient {layer.sink.grad.abs().max().item():.1e}")
assert losses[-1] < 0.7 * losses[0]
