# SPDX-License-Identifier: Apache-2.0
"""Code that imports flash_attn itself: transformers' own flash attention, unchanged, on the drop-ins of both releases."""
import subprocess
import sys

import conftest
import pytest

pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("transformers", reason="needs transformers")

# transformers looks for distributions of these names and for a GPU; both are said to be there.
SCRIPT = """
import copy, importlib.metadata, sys, torch, attn
attn.install_as_flash_attn()
packages = importlib.metadata.packages_distributions
importlib.metadata.packages_distributions = lambda: {**packages(), "flash_attn": ["flash-attn"], "flash_attn_interface": ["flash-attn-3"]}
import transformers
transformers.utils.import_utils.is_torch_cuda_available = lambda: True
import transformers.modeling_utils
transformers.modeling_utils.PreTrainedModel._flash_attn_can_dispatch = lambda *_, **__: True

device, family, way = sys.argv[1:]
torch.set_default_device(device)
torch.manual_seed(0)
more = {"Llama": {}, "Mistral": {"sliding_window": 5}, "Gemma2": {"sliding_window": 4, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}}
config = getattr(transformers, family + "Config")(
    vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None, **more[family])
config._attn_implementation = "eager"
eager = getattr(transformers, family + "ForCausalLM")(config).eval().to(torch.bfloat16)
ours = copy.deepcopy(eager)
ours.set_attn_implementation(way)
ids = torch.randint(2, 97, (2, 14))
mask = torch.ones_like(ids)
mask[1, :4] = 0
at = torch.cat([torch.arange(n) for n in (6, 3, 5)])[None]
for given in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}, {"input_ids": ids[:1], "position_ids": at, "use_cache": False}):
    found = []
    for model in (eager, ours):
        model.zero_grad()
        logits = model(**given).logits
        logits = logits[mask.bool()] if "attention_mask" in given else logits
        logits.float().logsumexp(-1).sum().backward()
        found.append([logits.detach().float(), *(p.grad.float() for p in model.parameters())])
    for a, b in zip(*found):
        assert (a - b).abs().max() <= 3e-2 * max(1.0, a.abs().max().item())
options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
with torch.no_grad():
    first, second = (model.generate(ids, **options).logits for model in (eager, ours))
assert all((a - b).abs().max() < 0.1 for a, b in zip(first[:1], second[:1]))
"""


@pytest.mark.parametrize("family,way", [("Llama", "flash_attention_2"), ("Mistral", "flash_attention_3"), ("Gemma2", "flash_attention_2")])
def test_flash_attention_of_transformers(family, way):
    done = subprocess.run([sys.executable, "-c", SCRIPT, conftest.DEVICE, family, way], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
