# SPDX-License-Identifier: Apache-2.0
"""ATTN_TEST_DEVICE=cuda: tests make their PyTorch tensors on the GPU, except what they put elsewhere by name."""
import os

DEVICE = os.environ.get("ATTN_TEST_DEVICE", "cpu")

if DEVICE != "cpu":
    import torch

    torch.set_default_device(DEVICE)
