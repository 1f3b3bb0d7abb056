#!/usr/bin/env python3
"""Writes small GGUF models with random weights from a fixed seed: every family, any tensor type, a tokenizer
and a chat template that work. For tests that need a model but no sense.

    make_tiny_gguf.py --list                                    names of the variants
    make_tiny_gguf.py VARIANT OUT [--type Q4_K] [--seed 1]      one model
    make_tiny_gguf.py --all FOLDER                              all variants, as VARIANT.gguf

needs: pip install gguf numpy
"""
import argparse
import math
import os
import zlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

# Field offsets of half-precision scales in blocks that the package can read but not make.
SCALE_FIELDS = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
                "IQ4_NL": [0], "IQ4_XS": [0]}

CORPUS = """the quick brown fox jumps over the lazy dog and then the fox and the dog sit there together in the
sun while other animals wander in and out of the garden hello world this is a test of the tokenizer and nothing
more than that is written here one two three four five six seven eight nine ten"""

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
          "'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
GEMMA_CHAT = ("{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' + "
              "message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}"
              "{{ '<start_of_turn>model\n' }}{% endif %}")


def variant(arch, **kw):
    v = dict(arch=arch, layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, ffn=96, context=512, tied=True,
             tokenizer="bpe", pre="gpt-2", type="Q8_0", rope_base=10000.0, rope_dim=None, eps=1e-6, window=0,
             scaling=None, rope_factors=None)
    v.update(kw)
    v["rope_dim"] = v["rope_dim"] or v["head_dim"]
    return v


def llama3_factors(v):
    """Divisors as the Llama 3.1 converter writes them: factor 8, low 1, high 4, original context 64."""
    factors = []
    for i in range(v["rope_dim"] // 2):
        wavelength = 2 * math.pi * v["rope_base"] ** (2 * i / v["rope_dim"])
        low, high = 64 / 1.0, 64 / 4.0
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(8.0)
        else:
            smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / 8.0 + smooth))
    return factors


VARIANTS = {
    # SmolLM2 / Llama 2 shape: interleaved rope, grouped heads, tied output.
    "llama": variant("llama", head_dim=16, pre="smollm", eps=1e-5, context=2048),
    # Llama 3.1: factor tensor, untied output, another tokenizer.
    "llama-rope3": variant("llama", pre="llama-bpe", rope_base=500000.0, tied=False, rope_factors="llama3"),
    # Llama 2 / TinyLlama / Mistral: SentencePiece, linear scaling, a sliding window.
    "llama-spm": variant("llama", tokenizer="spm", tied=False, scaling=("linear", 4.0), window=24, type="Q4_0"),
    "qwen2": variant("qwen2", pre="qwen2", rope_base=1e6, type="Q5_1"),
    "qwen2-yarn": variant("qwen2", pre="qwen2", rope_base=1e6, tied=False, scaling=("yarn", 4.0, 64), context=256,
                          type="Q8_0"),
    "qwen3": variant("qwen3", pre="qwen2", rope_base=1e6, type="Q4_1"),
    "gemma3": variant("gemma3", layers=7, hidden=32, heads=2, kv_heads=1, ffn=64, tokenizer="spm", rope_base=1e6,
                      window=12, scaling=("linear", 8.0)),
    "phi3": variant("phi3", tokenizer="spm", tied=False, window=20, type="Q5_0"),
    # Phi-3.5 / Phi-4-mini: longrope with the long set in force, rope over part of a head, grouped heads.
    "phi3-longrope": variant("phi3", pre="gpt-2", heads=2, kv_heads=1, rope_dim=24, rope_factors="longrope",
                             context=256, original_context=64),
    # The same with a context that stays within the original one: the short set.
    "phi3-short": variant("phi3", pre="gpt-2", heads=2, kv_heads=1, rope_dim=24, rope_factors="longrope",
                          context=64, original_context=64),
}


# --- tokenizers -------------------------------------------------------------------------------------------

def byte_alphabet():
    """GPT-2's map of bytes to printable characters."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


def learn_merges(words, count):
    """Plain byte-pair learning; ties go to the smaller pair."""
    words, merges = [list(w) for w in words], []
    for _ in range(count):
        pairs = {}
        for w in words:
            for pair in zip(w, w[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        for w in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == best:
                    w[i:i + 2] = [best[0] + best[1]]
                i += 1
    return merges


def bpe_vocabulary(w, pre):
    alphabet = byte_alphabet()
    merges = learn_merges(["Ġ" + word for word in CORPUS.split()], 60)
    tokens = [alphabet[b] for b in range(256)] + [a + b for a, b in merges]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    first = len(tokens)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens + special)
    w.add_token_types(types + [gguf.TokenType.CONTROL] * len(special))
    w.add_token_merges([a + " " + b for a, b in merges])
    w.add_bos_token_id(first)
    w.add_eos_token_id(first + 2)
    w.add_pad_token_id(first)
    w.add_add_bos_token(False)
    w.add_add_space_prefix(False)
    w.add_chat_template(CHATML)
    return len(tokens) + len(special)


def spm_vocabulary(w, arch):
    gemma = arch == "gemma3"
    special = ["<pad>", "<eos>", "<bos>", "<unk>"] if gemma else ["<unk>", "<s>", "</s>"]
    special += ["<start_of_turn>", "<end_of_turn>"] if gemma else ["<|im_start|>", "<|im_end|>"]
    merges = learn_merges(["▁" + word for word in CORPUS.split()], 60)
    chars = ["▁"] + [chr(c) for c in range(33, 127)] + ["\n", "é", "ü"]
    tokens = special + [f"<0x{b:02X}>" for b in range(256)] + [a + b for a, b in merges] + chars
    types = [gguf.TokenType.UNKNOWN if t == "<unk>" else gguf.TokenType.CONTROL for t in special]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * (len(merges) + len(chars))
    scores = [0.0] * (len(special) + 256) + [-float(i) for i in range(len(merges))]
    scores += [-1000.0 - i for i in range(len(chars))]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(special.index("<bos>" if gemma else "<s>"))
    w.add_eos_token_id(special.index("<eos>" if gemma else "</s>"))
    w.add_unk_token_id(special.index("<unk>"))
    w.add_eot_token_id(len(special) - 1)
    w.add_add_bos_token(True)
    w.add_add_space_prefix(not gemma)
    w.add_chat_template(GEMMA_CHAT if gemma else CHATML)
    return len(tokens)


# --- weights ----------------------------------------------------------------------------------------------

class Weights:
    """Tensors whose values depend on seed and name only, so that a new tensor changes no other."""

    def __init__(self, writer, type_name, seed):
        self.writer, self.type_name, self.seed = writer, type_name, seed

    def rng(self, name):
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def vector(self, name, n, mean, spread):
        values = self.rng(name).normal(mean, spread, n).astype(np.float32)
        self.writer.add_tensor(name, values)

    def matrix(self, name, rows, cols, gain=1.0):
        kind, spread, rng = Type[self.type_name], gain / math.sqrt(cols), self.rng(name)
        block = gguf.GGML_QUANT_SIZES[kind][0]
        if cols % block:  # like converters: rows that do not fit the type's blocks
            kind = Type.Q8_0 if cols % 32 == 0 else Type.F16
        if kind.name in SCALE_FIELDS:
            data = random_blocks(rng, kind, rows, cols, spread)
        else:
            values = rng.normal(0, spread, (rows, cols)).astype(np.float32)
            data = values if kind == Type.F32 else quants.quantize(values, kind)
        self.writer.add_tensor(name, data, raw_dtype=None if kind in (Type.F32, Type.F16) else kind)


def random_blocks(rng, kind, rows, cols, spread):
    """Random bits with scales that give the values about the wanted spread."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n = rows * cols // block
    blocks = rng.integers(0, 256, (n, block_bytes), dtype=np.uint8)
    for field in SCALE_FIELDS[kind.name]:
        blocks[:, field:field + 2] = np.full(n, 1.0, np.float16).view(np.uint8).reshape(n, 2)
    unit = float(quants.dequantize(blocks, kind).std())
    for field in SCALE_FIELDS[kind.name]:
        scales = (spread / unit * rng.uniform(0.5, 1.5, n)).astype(np.float16)
        blocks[:, field:field + 2] = scales.view(np.uint8).reshape(n, 2)
    return blocks.reshape(rows, cols // block * block_bytes)


def write_layer(t, v, i):
    p, hidden, hd = f"blk.{i}.", v["hidden"], v["head_dim"]
    q, kv = v["heads"] * hd, v["kv_heads"] * hd
    t.vector(p + "attn_norm.weight", hidden, 1, 0.1)
    if v["arch"] == "phi3":
        t.matrix(p + "attn_qkv.weight", q + 2 * kv, hidden)
    else:
        t.matrix(p + "attn_q.weight", q, hidden)
        t.matrix(p + "attn_k.weight", kv, hidden)
        t.matrix(p + "attn_v.weight", kv, hidden)
    if v["arch"] == "qwen2":
        for name, n in (("q", q), ("k", kv), ("v", kv)):
            t.vector(f"{p}attn_{name}.bias", n, 0, 0.5)
    if v["arch"] in ("qwen3", "gemma3"):
        t.vector(p + "attn_q_norm.weight", hd, 1, 0.2)
        t.vector(p + "attn_k_norm.weight", hd, 1, 0.2)
    t.matrix(p + "attn_output.weight", hidden, q)
    t.vector(p + "ffn_norm.weight", hidden, 1, 0.1)
    if v["arch"] == "phi3":
        t.matrix(p + "ffn_up.weight", 2 * v["ffn"], hidden, 2)
    else:
        t.matrix(p + "ffn_gate.weight", v["ffn"], hidden, 2)
        t.matrix(p + "ffn_up.weight", v["ffn"], hidden, 2)
    t.matrix(p + "ffn_down.weight", hidden, v["ffn"])
    if v["arch"] == "gemma3":
        t.vector(p + "post_attention_norm.weight", hidden, 1, 0.1)
        t.vector(p + "post_ffw_norm.weight", hidden, 1, 0.1)


def write_rope(w, v):
    w.add_rope_dimension_count(v["rope_dim"])
    w.add_rope_freq_base(v["rope_base"])
    if v["scaling"]:
        w.add_rope_scaling_type(gguf.RopeScalingType(v["scaling"][0]))
        w.add_rope_scaling_factor(v["scaling"][1])
        if len(v["scaling"]) > 2:
            w.add_rope_scaling_orig_ctx_len(v["scaling"][2])
    pairs = np.arange(v["rope_dim"] // 2, dtype=np.float32)
    if v["rope_factors"] == "llama3":
        w.add_tensor("rope_freqs.weight", np.array(llama3_factors(v), dtype=np.float32))
    if v["rope_factors"] == "longrope":
        original = v["original_context"]
        stretch = v["context"] / original
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0)
        w.add_tensor("rope_factors_long.weight", 1 + pairs * np.float32(0.5))
        w.add_tensor("rope_factors_short.weight", 1 + pairs * np.float32(0.03125))


def write_model(name, path, type_name=None, seed=20261129, **overrides):
    v = dict(VARIANTS[name], **overrides)
    w = gguf.GGUFWriter(path, v["arch"])
    w.add_type("model")
    w.add_name("tiny " + name)
    w.add_block_count(v["layers"])
    w.add_context_length(v["context"])
    w.add_embedding_length(v["hidden"])
    w.add_feed_forward_length(v["ffn"])
    w.add_head_count(v["heads"])
    w.add_head_count_kv(v["kv_heads"])
    w.add_layer_norm_rms_eps(v["eps"])
    if v["head_dim"] * v["heads"] != v["hidden"]:
        w.add_key_length(v["head_dim"])
        w.add_value_length(v["head_dim"])
    if v["window"]:
        w.add_sliding_window(v["window"])
    n_vocab = bpe_vocabulary(w, v["pre"]) if v["tokenizer"] == "bpe" else spm_vocabulary(w, v["arch"])
    write_rope(w, v)
    t = Weights(w, type_name or v["type"], seed)
    t.matrix("token_embd.weight", n_vocab, v["hidden"])
    for i in range(v["layers"]):
        write_layer(t, v, i)
    # Logits that differ by a few units; through the norm, for a large tied embedding would only echo its input.
    t.vector("output_norm.weight", v["hidden"], 3 if v["tied"] else 1, 0.1)
    if not v["tied"]:
        t.matrix("output.weight", n_vocab, v["hidden"], 3)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("variant", nargs="?", choices=VARIANTS)
    p.add_argument("out", nargs="?")
    p.add_argument("--list", action="store_true")
    p.add_argument("--all", metavar="FOLDER")
    p.add_argument("--type", choices=[k.name for k in Type])
    p.add_argument("--seed", type=int, default=20261129)
    for number in ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "context"):
        p.add_argument("--" + number.replace("_", "-"), type=int)
    a = p.parse_args()
    overrides = {k: getattr(a, k) for k in ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "context")
                 if getattr(a, k) is not None}
    if "head_dim" in overrides:
        overrides["rope_dim"] = overrides["head_dim"]
    if a.list:
        print("\n".join(VARIANTS))
    elif a.all:
        for name in VARIANTS:
            write_model(name, os.path.join(a.all, name + ".gguf"), a.type, a.seed, **overrides)
    elif a.variant and a.out:
        write_model(a.variant, a.out, a.type, a.seed, **overrides)
    else:
        p.error("a variant and an output file are needed, or --list, or --all")


if __name__ == "__main__":
    main()
