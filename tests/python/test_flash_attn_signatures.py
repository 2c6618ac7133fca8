# SPDX-License-Identifier: Apache-2.0
"""Every function of the drop-ins has the original's parameters, in order, with its defaults."""

import inspect

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import attn.flash_attn as fa2
import attn.flash_attn.flash_attn_interface as low
import attn.flash_attn_3 as fa3

W = "window_size=(-1, -1)"
TAIL = f"dropout_p=0.0, softmax_scale=None, causal=False, {W}, softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False"
VARLEN = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
BACK = "dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic, rng_state=None"
SCALES = "q_descale=None, k_descale=None, v_descale=None"

FA2 = {
    "flash_attn_func": f"q, k, v, {TAIL}",
    "flash_attn_kvpacked_func": f"q, kv, {TAIL}",
    "flash_attn_qkvpacked_func": f"qkv, {TAIL}",
    "flash_attn_varlen_func": f"q, k, v, {VARLEN}, {TAIL}, block_table=None",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {VARLEN}, {TAIL}",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {TAIL}",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, "
    f"causal=False, {W}, softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
    "return_softmax_lse=False",
}
LOW = {
    "_flash_attn_forward": "q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, "
    "alibi_slopes, return_softmax",
    "_flash_attn_varlen_forward": f"q, k, v, {VARLEN}, dropout_p, softmax_scale, causal, window_size_left=-1, "
    "window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False, block_table=None, leftpad_k=None, "
    "seqused_k=None, zero_tensors=False, num_splits=0",
    "_flash_attn_backward": f"dout, q, k, v, out, softmax_lse, dq, dk, dv, {BACK}",
    "_flash_attn_varlen_backward": f"dout, q, k, v, out, softmax_lse, dq, dk, dv, {VARLEN}, {BACK}, zero_tensors=False",
}
FA3 = {
    "flash_attn_func": f"q, k, v, softmax_scale=None, causal=False, qv=None, {SCALES}, {W}, attention_chunk=0, "
    "softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False",
    "flash_attn_qkvpacked_func": f"qkv, softmax_scale=None, causal=False, {SCALES}, {W}, attention_chunk=0, "
    "softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, return_attn_probs=False",
    "flash_attn_varlen_func": f"q, k, v, {VARLEN}, seqused_q=None, seqused_k=None, softmax_scale=None, causal=False, "
    f"qv=None, {SCALES}, {W}, attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
    "sm_margin=0, return_attn_probs=False",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, "
    f"cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, {SCALES}, softmax_scale=None, causal=False, {W}, "
    "attention_chunk=0, softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, "
    "sm_margin=0, return_softmax_lse=False",
    "flash_attn_combine": "out_partial, lse_partial, out=None, out_dtype=None",
    "get_scheduler_metadata": "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, "
    "cache_seqlens, qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
    f"cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False, {W}, attention_chunk=0, "
    "has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0",
}
CASES = [(module, name, text) for module, table in ((fa2, FA2), (low, FA2), (low, LOW), (fa3, FA3)) for name, text in table.items()]


@pytest.mark.parametrize("module,name,text", CASES, ids=[f"{m.__name__}.{n}" for m, n, _ in CASES])
def test_signature(module, name, text):
    assert str(inspect.signature(getattr(module, name))) == f"({text})"


def test_version_and_raw_binding():
    assert fa2.__version__ == "2.8.3"
    with pytest.raises(NotImplementedError, match="flash_attn_gpu.fwd"):
        low.flash_attn_gpu.fwd
