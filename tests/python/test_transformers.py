# SPDX-License-Identifier: Apache-2.0
"""Small random models of several families: attn's logits, gradients and generated tokens are those of eager attention."""

import copy

import conftest
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
if not hasattr(transformers, "AttentionMaskInterface"):
    pytest.skip("transformers has no AttentionMaskInterface", allow_module_level=True)

import attn.transformers
from attn import _seen

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


def seen_masks(monkeypatch):
    """Whatever attention_forward is given from now on."""
    masks, real = [], attn.transformers.attention_forward

    def spy(module, query, key, value, attention_mask, *more, **named):
        masks.append(attention_mask)
        return real(module, query, key, value, attention_mask, *more, **named)

    monkeypatch.setattr(attn.transformers, "attention_forward", spy)
    return masks


WANTED = {"plain": None, "padding left": "rows", "padding right": "used", "packed": "rows"}


@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_masks_are_rules(family, kind, monkeypatch):
    masks = seen_masks(monkeypatch)
    _, ours = models(family)
    monkeypatch.setattr(transformers.masking_utils, "sdpa_mask", lambda *_, **__: pytest.fail("a mask was made"))
    ours(**inputs(kind))
    assert len(masks) == 2
    for mask in masks:
        if kind == "plain" and family == "Llama":
            assert mask is None
        else:
            assert type(mask) is _seen.Seen and (WANTED[kind] is None or getattr(mask, WANTED[kind]) is not None)
            assert mask.window == ((4, -1) if family == "Mistral" else (-1, -1)) and mask.causal


@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_memory_is_linear(family, kind):
    """No operation of a training step at 2048 tokens takes as much memory as one byte for each pair of them."""
    from torch.profiler import ProfilerActivity, profile

    if conftest.DEVICE != "cpu":
        pytest.skip("the CPU's allocations tell as much")
    tokens = 2048
    ids = torch.randint(2, 97, (1, tokens))
    given = {"input_ids": ids, "use_cache": False}
    if kind == "packed":
        given["position_ids"] = torch.cat([torch.arange(n) for n in (1000, 48, 1000)])[None]
    elif kind != "plain":
        given["attention_mask"] = torch.ones_like(ids)
        given["attention_mask"][0, slice(0, 700) if kind == "padding left" else slice(-700, None)] = 0
    _, ours = models(family)
    ours.config.max_position_embeddings = tokens

    def most():
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            ours(**given).logits.sum().backward()
        return max(event.self_cpu_memory_usage for event in found.events())

    assert most() < tokens * tokens
    if kind != "plain":
        ours.set_attn_implementation("sdpa")
        assert most() >= tokens * tokens


@pytest.mark.parametrize("kind", ["plain", "padding left", "padding right"])
@pytest.mark.parametrize("family", ["Llama", "Mistral", "Gemma2"])
@pytest.mark.parametrize("cache", ["DynamicCache", "StaticCache"])
def test_prefill_in_parts(family, kind, cache):
    """The second part's rows start in the middle of the keys; a static cache holds more keys than there are tokens."""
    given, found = inputs(kind), []
    mask = given.get("attention_mask", torch.ones(2, 14, dtype=torch.long))
    for model in models(family):
        more = {"max_cache_len": 24} if cache == "StaticCache" else {}
        past = getattr(transformers, cache)(config=model.config, **more)
        with torch.no_grad():
            parts = [model(input_ids=given["input_ids"][:, a:b], attention_mask=mask[:, :b], past_key_values=past,
                           position_ids=torch.arange(a, b)[None].expand(2, -1)).logits for a, b in ((0, 6), (6, 13), (13, 14))]
        found.append(torch.cat(parts, 1)[mask.bool()])
    assert (found[0] - found[1]).abs().max() < 1e-4 * max(1.0, found[0].abs().max().item())


def test_checkpointed_layers():
    given, found = inputs("packed"), []
    for model in models("Mistral"):
        model.train()
        model.gradient_checkpointing_enable()
        model(**given).logits.logsumexp(-1).sum().backward()
        found.append([p.grad for p in model.parameters()])
    for a, b in zip(*found):
        assert (a - b).abs().max() < 1e-3 * max(1.0, a.abs().max().item())


def test_lengths_of_packed_rows():
    """cu_seq_lens divide rows whose position ids do not, with rules and with a boolean mask."""
    _, ours = models("Mistral")
    ids = torch.randint(2, 97, (1, 14))
    cu = torch.tensor([0, 6, 9, 14], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": 6, "max_length_k": 6, "use_cache": False}
    at = torch.cat([torch.arange(n) for n in (6, 3, 5)])[None]
    want = torch.cat([ours(input_ids=ids[:, a:b], use_cache=False).logits for a, b in ((0, 6), (6, 9), (9, 14))], 1)
    dense = torch.ones(14, 14, dtype=torch.bool).tril().triu(-4)[None, None]
    for more in ({}, {"attention_mask": dense}, {"attention_mask": torch.ones(1, 14)}):
        got = ours(input_ids=ids, position_ids=at, **lengths, **more).logits
        assert (got - want).abs().max() < 1e-4
    with pytest.raises(ValueError, match="cu_seq_lens"):
        ours(input_ids=ids, cu_seq_lens_q=cu)


SHAPES = [(5, 5, 0), (5, 9, 4), (3, 9, 2), (5, 9, 0), (2, 2, 0)]


@pytest.mark.parametrize("rows,keys,ahead", SHAPES)
@pytest.mark.parametrize("hidden", ["none", "left", "right", "both", "hole", "all of one"])
@pytest.mark.parametrize("rule", ["causal", "window", "all", "window both ways", "packed", "chunks"])
def test_rules_are_the_functions(rule, hidden, rows, keys, ahead):
    """attention_forward over what attention_mask makes of a function, against the function's boolean tensor."""
    m = transformers.masking_utils
    if rule == "packed" and (keys, ahead, hidden) != (rows, 0, "none"):
        pytest.skip("transformers packs rows of whole sequences only, without padding")
    ids = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]])[:, :rows]
    function = {
        "causal": m.causal_mask_function, "window": m.sliding_window_causal_mask_function(3), "all": m.bidirectional_mask_function,
        "window both ways": m.sliding_window_bidirectional_mask_function(2),
        "packed": m.and_masks(m.sliding_window_causal_mask_function(2), m.packed_sequence_mask_function(ids)),
        "chunks": m.chunked_causal_mask_function(3, torch.zeros(2, dtype=torch.int64)),
    }[rule]  # fmt: skip
    padding = torch.ones(2, keys, dtype=torch.bool)
    padding[1] = torch.tensor({"none": [1] * 9, "left": [0, 0] + [1] * 7, "right": [1] * 3 + [0] * 6, "both": [0] + [1] * 3 + [0] * 5,
                               "hole": [1, 0] + [1] * 7, "all of one": [0] * 9}[hidden][:keys])
    causal = rule not in ("all", "window both ways")
    given = dict(batch_size=2, q_length=rows, kv_length=keys, q_offset=ahead, kv_offset=0, mask_function=function, device=padding.device,
                 attention_mask=None if hidden == "none" else padding, allow_is_causal_skip=causal and rule != "packed",
                 allow_is_bidirectional_skip=not causal, local_size={"window": 3, "window both ways": 2, "chunks": 3}.get(rule))
    mask = attn.transformers.attention_mask(**given)
    dense = m.sdpa_mask(**{**given, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    q, k, v = torch.randn(2, 4, rows, 8), torch.randn(2, 2, keys, 8), torch.randn(2, 2, keys, 8)
    sink = torch.randn(4)
    got, want = (attn.transformers.attention_forward(torch.nn.Module(), q, k, v, t, is_causal=causal, s_aux=sink)[0] for t in (mask, dense))
    some = dense.any(-1).transpose(1, 2)
    assert ((got - want)[some.expand(*some.shape[:2], 4)].abs() < 1e-5).all() and got.isfinite().all()
    if isinstance(mask, _seen.Seen):
        assert mask.shape == dense.shape and torch.equal(mask[..., :], dense) and torch.equal(torch.where(mask, 1, 0), dense.int())
        elsewhere = mask.to("meta")
        assert type(elsewhere) is _seen.Seen and elsewhere.device.type == "meta" and elsewhere.shape == mask.shape
        assert all(t.device.type == "meta" for side in elsewhere.rows or () for t in side[:2] if t is not None)
        assert type(mask.to(torch.float16)) is torch.Tensor
    known = {"causal": ("none", "left", "right", "all of one"), "window": ("none", "left", "right", "all of one"), "packed": ("none",),
             "all": ("none", "left", "right", "both", "hole", "all of one"), "window both ways": ("none", "right", "all of one"), "chunks": ()}
    if rows == keys and hidden in known[rule]:
        assert mask is None or type(mask) is _seen.Seen


@pytest.mark.parametrize("kind", WANTED)
def test_compiled_models(kind):
    """Traced, masks are boolean tensors: the same logits."""
    _, ours = models("Mistral")
    given = {**inputs(kind), "use_cache": False}
    real = given.get("attention_mask", torch.ones(2, 14)).bool()
    with torch.no_grad():
        want = ours(**given).logits[real]
        got = torch.compile(ours, backend="eager", fullgraph=True)(**given).logits[real]
    assert (got - want).abs().max() < 1e-4 * max(1.0, want.abs().max().item())
