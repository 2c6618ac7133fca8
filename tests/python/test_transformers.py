# SPDX-License-Identifier: Apache-2.0
"""Small random models of several families: attn's logits, gradients and generated tokens are those of eager attention."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
if not hasattr(transformers, "AttentionMaskInterface"):
    pytest.skip("transformers has no AttentionMaskInterface", allow_module_level=True)

import attn.transformers

SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None,
}  # fmt: skip
FAMILIES = {
    "Llama": {},
    "Mistral": {"sliding_window": 5},
    "Qwen2": {},
    "Gemma2": {"sliding_window": 4, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    "GptOss": {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
}


def models(family):
    attn.transformers.register()
    config = getattr(transformers, family + "Config")(**SIZES, **FAMILIES[family])
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    eager = getattr(transformers, family + "ForCausalLM")(config).eval()
    for name, parameter in eager.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("attn")
    assert ours.config._attn_implementation == "attn"
    return eager, ours


def inputs(kind):
    torch.manual_seed(8)
    ids = torch.randint(2, 97, (2, 14))
    if kind == "padding left" or kind == "padding right":
        mask = torch.ones_like(ids)
        mask[1, slice(0, 4) if kind == "padding left" else slice(-4, None)] = 0
        return {"input_ids": ids, "attention_mask": mask}
    if kind == "packed":
        at = torch.cat([torch.arange(n) for n in (6, 3, 5)])
        return {"input_ids": ids, "position_ids": at.expand(2, -1), "use_cache": False}
    return {"input_ids": ids}


@pytest.mark.parametrize("kind", ["plain", "padding left", "padding right", "packed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients(family, kind):
    given, found = inputs(kind), []
    real = given.get("attention_mask", torch.ones(2, 14)).bool()
    for model in models(family):
        logits = model(**given).logits
        loss = logits[real].logsumexp(-1).sum()
        loss.backward()
        found.append((logits[real].detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    (want, grads), (logits, ours) = found
    assert (logits - want).abs().max() < 1e-4 * max(1.0, want.abs().max().item())
    assert grads.keys() == ours.keys() and any("k_proj" in n for n in grads)
    for name, grad in grads.items():
        assert (ours[name] - grad).abs().max() < 1e-3 * max(1.0, grad.abs().max().item()), name


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("kind", ["plain", "padding left"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generate(family, kind, cache):
    eager, ours = models(family)
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
    given = {"attention_mask": torch.ones(2, 14, dtype=torch.long), **inputs(kind)}
    assert torch.equal(ours.generate(**given, **options), eager.generate(**given, **options))


def test_really_called_and_bidirectional(monkeypatch):
    attn.transformers.register()
    config = transformers.BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    eager = transformers.BertModel(config).eval()
    eager.set_attn_implementation("eager")
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("attn")
    calls, real = [], attn.attention
    monkeypatch.setattr(attn, "attention", lambda *a, **k: calls.append(k) or real(*a, **k))
    ids = torch.randint(0, 50, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    for given in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
        a, b = (m(**given).last_hidden_state[:, :6] for m in (ours, eager))
        assert (a - b).abs().max() < 1e-5
    assert calls and not any(c["causal"] for c in calls)


def test_probabilities_are_refused():
    with pytest.raises(NotImplementedError, match="output_attentions"):
        attn.transformers.attention_forward(None, None, None, None, None, output_attentions=True)
