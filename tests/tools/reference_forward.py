#!/usr/bin/env python3
"""A forward pass of every served family in numpy float64, read straight from a GGUF file: the independent
reference for families without a golden of their own. Plain on purpose: whole sequence at once, the score
matrix in full, weights dequantized by the `gguf` package.

    reference_forward.py MODEL.gguf OUT.json [--tokens 48]     log-probabilities at a few positions
    reference_forward.py MODEL.gguf OUT.json --ids IDS.json    at every position of the ids given (a JSON list)
    reference_forward.py --all FOLDER                          for every *.gguf there, FOLDER/NAME.json

OUT: {"model", "ids", "logprobs": [[pos, [[id, logprob], …ten likeliest…]], …], "logprobs_f16_kv": the same}; the
entry of `pos` is the distribution of the token after ids[0..pos]. The second list keeps K and V rounded to half
precision, as a KV cache does: with random weights that rounding alone moves a log-probability by up to 1e-2, which
would hide an error of the same size.
needs: pip install gguf numpy
"""
import argparse
import json
import math
import os

import gguf
import numpy as np
from gguf import quants


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.keys = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {}
        for t in reader.tensors:
            values = t.data if t.tensor_type.name == "F32" else quants.dequantize(t.data, t.tensor_type)
            self.tensors[t.name] = np.asarray(values, np.float64).reshape(tuple(reversed(t.shape.tolist())))
        self.arch = self.keys["general.architecture"]

    def key(self, name, default=None):
        return self.keys.get(f"{self.arch}.{name}", default)

    def get(self, name):
        return self.tensors.get(name)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def yarn_frequencies(freqs, base, dim, factor, original):
    """Peng et al. 2023, section 3.2: wavelengths short against the original context stay, long ones stretch."""
    def pair_of(turns):
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(pair_of(32)), 0), min(math.ceil(pair_of(1)), dim - 1)
    stretch = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return freqs / factor * stretch + freqs * (1 - stretch)


def rope_frequencies(m, head_dim):
    """(frequencies of global layers, of local layers, factor on cos and sin)."""
    dim = m.key("rope.dimension_count", head_dim)
    base = m.key("rope.freq_base", 10000.0)
    freqs = base ** (-np.arange(0, dim, 2) / dim)
    kind, factor, amplitude = m.key("rope.scaling.type", "none"), m.key("rope.scaling.factor", 1.0), 1.0
    if kind == "linear":
        freqs = freqs / factor
    if kind == "yarn":
        freqs = yarn_frequencies(freqs, base, dim, factor, m.key("rope.scaling.original_context_length"))
        amplitude = 0.1 * math.log(factor) + 1
    if m.get("rope_freqs.weight") is not None:
        freqs = freqs / m.get("rope_freqs.weight")
    if m.get("rope_factors_long.weight") is not None:
        is_long = m.key("context_length") > m.key("rope.scaling.original_context_length")
        freqs = freqs / m.get(f"rope_factors_{'long' if is_long else 'short'}.weight")
        amplitude = m.key("rope.scaling.attn_factor")
    return freqs, 10000.0 ** (-np.arange(0, dim, 2) / dim), amplitude


def rope(x, freqs, amplitude, interleaved):
    """x: [tokens, heads, head_dim]; the first 2 * len(freqs) values of a head turn."""
    angle = np.arange(x.shape[0])[:, None, None] * freqs
    cos, sin = amplitude * np.cos(angle), amplitude * np.sin(angle)
    n, out = len(freqs), x.copy()
    a, b = (x[..., 0:2 * n:2], x[..., 1:2 * n:2]) if interleaved else (x[..., :n], x[..., n:2 * n])
    first, second = a * cos - b * sin, a * sin + b * cos
    if interleaved:
        out[..., 0:2 * n:2], out[..., 1:2 * n:2] = first, second
    else:
        out[..., :n], out[..., n:2 * n] = first, second
    return out


def attention(q, k, v, window, scale):
    """q: [T, H, D], k and v: [T, KV, D] -> [T, H*D]"""
    n, heads, dim = q.shape
    k, v = np.repeat(k, heads // k.shape[1], axis=1), np.repeat(v, heads // v.shape[1], axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    behind = np.arange(n)[:, None] - np.arange(n)[None, :]  # how far back a key lies
    hidden = (behind < 0) | ((behind >= window) if window else False)
    scores = np.where(hidden[None], -np.inf, scores)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", p, v).reshape(n, heads * dim)


def forward(m, ids, kv_type=np.float64):
    """Logits [len(ids), vocabulary]; K and V are kept as kv_type."""
    hidden, heads = m.key("embedding_length"), m.key("attention.head_count")
    kv_heads, ffn = m.key("attention.head_count_kv", heads), m.key("feed_forward_length")
    head_dim = m.key("attention.key_length", hidden // heads)
    eps, is_gemma = m.key("attention.layer_norm_rms_epsilon"), m.arch == "gemma3"
    global_freqs, local_freqs, amplitude = rope_frequencies(m, head_dim)
    x = m.get("token_embd.weight")[ids]
    if is_gemma:
        x = x * math.sqrt(hidden)
    for i in range(m.key("block_count")):
        def w(name):
            return m.get(f"blk.{i}.{name}")
        is_local = is_gemma and (i + 1) % 6 != 0
        window = m.key("attention.sliding_window", 0) if is_local or not is_gemma else 0
        h = rms_norm(x, w("attn_norm.weight"), eps)
        if w("attn_qkv.weight") is not None:
            sizes = np.cumsum([heads * head_dim, kv_heads * head_dim])
            q, k, v = np.split(h @ w("attn_qkv.weight").T, sizes, axis=-1)
        else:
            q, k, v = (h @ w(f"attn_{n}.weight").T for n in "qkv")
            if w("attn_q.bias") is not None:
                q, k, v = (y + w(f"attn_{n}.bias") for y, n in ((q, "q"), (k, "k"), (v, "v")))
        q, k, v = (y.reshape(len(ids), -1, head_dim) for y in (q, k, v))
        if w("attn_q_norm.weight") is not None:
            q, k = rms_norm(q, w("attn_q_norm.weight"), eps), rms_norm(k, w("attn_k_norm.weight"), eps)
        freqs, factor = (local_freqs, 1.0) if is_local else (global_freqs, amplitude)
        q, k = (rope(y, freqs, factor, m.arch == "llama") for y in (q, k))
        k, v = k.astype(kv_type).astype(np.float64), v.astype(kv_type).astype(np.float64)
        h = attention(q, k, v, window, 1 / math.sqrt(head_dim)) @ w("attn_output.weight").T
        x = x + (rms_norm(h, w("post_attention_norm.weight"), eps) if is_gemma else h)
        h = rms_norm(x, w("ffn_norm.weight"), eps)
        if w("ffn_gate.weight") is None:
            gate, up = np.split(h @ w("ffn_up.weight").T, [ffn], axis=-1)
        else:
            gate, up = h @ w("ffn_gate.weight").T, h @ w("ffn_up.weight").T
        h = ((gelu_tanh(gate) if is_gemma else silu(gate)) * up) @ w("ffn_down.weight").T
        x = x + (rms_norm(h, w("post_ffw_norm.weight"), eps) if is_gemma else h)
    out = m.get("output.weight")
    return rms_norm(x, m.get("output_norm.weight"), eps) @ (m.get("token_embd.weight") if out is None else out).T


def log_softmax(logits):
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


def test_ids(m, n):
    return np.random.default_rng(5).integers(0, m.get("token_embd.weight").shape[0], n).tolist()


def likeliest(logprobs, positions=None):
    n, entries = len(logprobs), []
    for pos in positions or sorted({0, 1, 7, 15, 16, 17, n // 2, n - 1}):
        best = np.argsort(-logprobs[pos], kind="stable")[:10]
        entries.append([pos, [[int(t), round(float(logprobs[pos, t]), 7)] for t in best]])
    return entries


def write_reference(path, out, n_tokens):
    m = Model(path)
    ids = test_ids(m, min(n_tokens, m.key("context_length")))
    result = {"model": os.path.basename(path), "ids": ids,
              "logprobs": likeliest(log_softmax(forward(m, ids))),
              "logprobs_f16_kv": likeliest(log_softmax(forward(m, ids, np.float16)))}
    with open(out, "w") as f:
        f.write(json.dumps(result) + "\n")


def write_every_position(path, out, ids):
    """As write_reference, for a text; "nll" are the negative log-likelihoods of ids[1..]."""
    logprobs = log_softmax(forward(Model(path), ids))
    nll = [round(-float(logprobs[i, t]), 7) for i, t in enumerate(ids[1:])]
    entries = likeliest(logprobs, range(len(ids)))
    with open(out, "w") as f:
        f.write(json.dumps({"model": os.path.basename(path), "ids": ids, "nll": nll})[:-1])
        f.write(', "logprobs": [\n' + ",\n".join(json.dumps(e) for e in entries) + "\n]}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?")
    p.add_argument("out", nargs="?")
    p.add_argument("--all", metavar="FOLDER")
    p.add_argument("--tokens", type=int, default=56)
    p.add_argument("--ids", metavar="IDS.json")
    a = p.parse_args()
    if a.all:
        for name in sorted(n for n in os.listdir(a.all) if n.endswith(".gguf")):
            write_reference(os.path.join(a.all, name), os.path.join(a.all, name[:-5] + ".json"), a.tokens)
    elif a.model and a.out and a.ids:
        with open(a.ids) as f:
            write_every_position(a.model, a.out, json.load(f))
    elif a.model and a.out:
        write_reference(a.model, a.out, a.tokens)
    else:
        p.error("a model and an output file are needed, or --all")


if __name__ == "__main__":
    main()
