#!/usr/bin/env python3
"""Holds reference_forward.py against Hugging Face transformers in float64 on the same tiny models: the weights
of a GGUF are copied into a transformers model made from the same configuration. Not run by run_all (torch is
large); PROVENANCE.md of tests/golden/families has the result.

    compare_with_transformers.py MODEL.gguf…        exit code 1 when a log-probability differs by more than 1e-5
needs: pip install gguf numpy torch transformers
"""
import sys

import numpy as np
import reference_forward
import torch

# transformers goes through float32 inside norms, rope and softmax; here that means float64 too, so that what
# remains is a difference of meaning, not of rounding.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
import transformers  # noqa: E402


def rope_parameters(m, dim):
    kind = m.key("rope.scaling.type", "default")
    p = {"rope_type": kind, "rope_theta": m.key("rope.freq_base")}
    original = m.key("rope.scaling.original_context_length")
    if kind in ("linear", "yarn"):
        p["factor"] = m.key("rope.scaling.factor")
    if original:
        p["original_max_position_embeddings"] = original
    if m.get("rope_freqs.weight") is not None:  # written from these figures by make_tiny_gguf.py
        p.update(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                 original_max_position_embeddings=64)
    if m.get("rope_factors_long.weight") is not None:
        p.update(rope_type="longrope", long_factor=m.get("rope_factors_long.weight").tolist(),
                 short_factor=m.get("rope_factors_short.weight").tolist())
    return p


def configuration(m):
    hidden, heads = m.key("embedding_length"), m.key("attention.head_count")
    dim = m.key("attention.key_length", hidden // heads)
    rope_dim = m.key("rope.dimension_count")
    common = dict(
        vocab_size=m.get("token_embd.weight").shape[0], hidden_size=hidden, num_hidden_layers=m.key("block_count"),
        num_attention_heads=heads, num_key_value_heads=m.key("attention.head_count_kv"), head_dim=dim,
        intermediate_size=m.key("feed_forward_length"), max_position_embeddings=m.key("context_length"),
        rms_norm_eps=m.key("attention.layer_norm_rms_epsilon"), attn_implementation="eager",
        tie_word_embeddings=m.get("output.weight") is None, pad_token_id=0, use_cache=False)
    parameters = rope_parameters(m, rope_dim)
    if rope_dim != dim:
        parameters["partial_rotary_factor"] = rope_dim / dim
    window = m.key("attention.sliding_window") or None
    if m.arch == "llama":
        name = "Llama" if not window else "Mistral"
        return name, dict(common, rope_parameters=parameters, **({"sliding_window": window} if window else {}))
    if m.arch == "gemma3":
        local = {"rope_type": "default", "rope_theta": 10000.0}
        types = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(m.key("block_count"))]
        return "Gemma3", dict(common, sliding_window=window, layer_types=types, query_pre_attn_scalar=dim,
                              rope_parameters={"full_attention": parameters, "sliding_attention": local},
                              hidden_activation="gelu_pytorch_tanh")
    if m.arch == "phi3":  # its configuration has a default of its own, which would win
        common["original_max_position_embeddings"] = m.key("rope.scaling.original_context_length",
                                                           common["max_position_embeddings"])
    names = {"qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}
    return names[m.arch], dict(common, rope_parameters=parameters, **({"sliding_window": window} if window else {}))


NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA_NAMES = {"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
               "post_ffw_norm": "post_feedforward_layernorm"}


def unpermute(w, heads):
    """Undoes the llama converter's order of rows: neighbours that turn together -> halves."""
    dim = w.shape[0] // heads
    return w.reshape(heads, dim // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def state(m):
    out = {"model.embed_tokens.weight": m.get("token_embd.weight"), "model.norm.weight": m.get("output_norm.weight")}
    head = m.get("output.weight")
    out["lm_head.weight"] = out["model.embed_tokens.weight"] if head is None else head
    names = dict(NAMES, **(GEMMA_NAMES if m.arch == "gemma3" else {}))
    if m.arch == "phi3":
        names["ffn_up"] = "mlp.gate_up_proj"
    for name, value in m.tensors.items():
        if not name.startswith("blk."):
            continue
        _, layer, role, kind = name.split(".")
        if m.arch == "llama" and role in ("attn_q", "attn_k"):
            value = unpermute(value, m.key("attention.head_count" + ("" if role == "attn_q" else "_kv")))
        out[f"model.layers.{layer}.{names[role]}.{kind}"] = value
    if m.arch == "gemma3":  # transformers adds the 1 itself
        out = {k: v - 1 if "norm" in k else v for k, v in out.items()}
    return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in out.items()}


def widest_difference(path):
    m = reference_forward.Model(path)
    name, values = configuration(m)
    torch.set_default_dtype(torch.float64)
    config = getattr(transformers, name + ("TextConfig" if name == "Gemma3" else "Config"))(**values)
    model = getattr(transformers, name + "ForCausalLM")(config).eval().double()
    missing, unexpected = model.load_state_dict(state(m), strict=False)
    assert not unexpected and not missing, (missing, unexpected)
    ids = reference_forward.test_ids(m, min(200, m.key("context_length")))
    with torch.no_grad():
        theirs = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1).numpy()
    ours = reference_forward.log_softmax(reference_forward.forward(m, ids))
    return name, len(ids), float(np.abs(ours - theirs).max())


def main():
    worst = 0.0
    for path in sys.argv[1:]:
        name, n, difference = widest_difference(path)
        print(f"{path}: {name}, {n} tokens, widest difference {difference:.2e}")
        worst = max(worst, difference)
    sys.exit(worst > 1e-5)


if __name__ == "__main__":
    main()
