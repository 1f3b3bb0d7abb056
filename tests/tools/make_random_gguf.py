#!/usr/bin/env python3
"""Writes a GGUF of a real model's shape with random weights, streamed to disk: speed doesn't depend on the values.

    make_random_gguf.py SHAPE TYPE OUT [--tokenizer FILE.gguf] [--layers 4] [--context 8192] [--seed 1]
    make_random_gguf.py --list

TYPE is a tensor type (Q4_0, Q8_0, Q6_K, F16, BF16, ...) or the mix Q4_K_M. The head (and the embedding where it is the head)
is wider than the rest as llama-quantize makes it: Q6_K for 4-bit files. Rows that K types can't hold take Q5_0 or Q8_0.
The vocabulary comes from --tokenizer (a byte-level BPE file, say SmolLM2), filled up with tokens no text reaches; without
it a small one is made. A block of random values per type and spread is repeated through the tensors, so several hundred MB/s.

needs: pip install gguf numpy
"""
import argparse
import math
import os
import sys
import time

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

from make_tiny_gguf import SCALE_FIELDS, bpe_vocabulary, random_blocks


def shape(layers, hidden, heads, kv_heads, head_dim, ffn, vocab, tied, rope_base, pre):
    return dict(layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=ffn, vocab=vocab,
                tied=tied, rope_base=rope_base, pre=pre)


SHAPES = {
    "smollm2-135m": shape(30, 576, 9, 3, 64, 1536, 49152, True, 100000.0, "smollm"),
    "llama-3.2-1b": shape(16, 2048, 32, 8, 64, 8192, 128256, True, 500000.0, "llama-bpe"),
    "llama-3.1-8b": shape(32, 4096, 32, 8, 128, 14336, 128256, False, 500000.0, "llama-bpe"),
    "mistral-7b": shape(32, 4096, 32, 8, 128, 14336, 32768, False, 1000000.0, "smollm"),
}
TILE_BYTES = 8 << 20  # random bytes made per (type, spread); longer than any cache level that could profit


def bar(done, total, started):
    if sys.stderr.isatty():
        width = 40 * done // total
        rate = done / 1e6 / max(time.monotonic() - started, 1e-3)
        end = "\n" if done == total else ""
        print(f"\r[{'#' * width}{'.' * (40 - width)}] {done / 1e9:6.2f} of {total / 1e9:.2f} GB, {rate:.0f} MB/s ", end=end,
              file=sys.stderr, flush=True)


# --- which tensor gets which type -------------------------------------------------------------------------

def more_bits(layer, n_layers):
    """The layers whose attn_v and ffn_down llama-quantize keeps at 6 bits in a Q4_K_M file."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def fitting(kind, cols):
    """llama-quantize's stand-ins for rows that are no multiple of 256."""
    if cols % gguf.GGML_QUANT_SIZES[kind][0] == 0:
        return kind
    return {Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1, Type.Q6_K: Type.Q8_0}.get(kind, Type.Q8_0)


def tensor_type(type_name, role, layer, n_layers, cols):
    head = role == "head"
    if type_name == "Q4_K_M":
        wide = head or (role in ("attn_v", "ffn_down") and more_bits(layer, n_layers))
        kind = Type.Q6_K if wide else Type.Q4_K
    else:
        kind = Type[type_name]
        if head and kind in (Type.Q4_0, Type.Q4_1, Type.Q4_K, Type.Q5_0, Type.Q5_1, Type.Q5_K, Type.IQ4_NL, Type.IQ4_XS):
            kind = Type.Q6_K
    return fitting(kind, cols)


def tensors(s, type_name):
    """Yields (name, rows, cols, type, gain); a vector has rows 0."""
    hidden, q, kv, ffn, n = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"], s["ffn"], s["layers"]

    def matrix(name, rows, cols, role="", layer=0, gain=1.0):
        return name, rows, cols, tensor_type(type_name, role, layer, n, cols), gain

    yield matrix("token_embd.weight", s["vocab"], hidden, "head" if s["tied"] else "")
    for i in range(n):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", 0, hidden, Type.F32, 1.0
        yield matrix(p + "attn_q.weight", q, hidden)
        yield matrix(p + "attn_k.weight", kv, hidden)
        yield matrix(p + "attn_v.weight", kv, hidden, "attn_v", i)
        yield matrix(p + "attn_output.weight", hidden, q)
        yield p + "ffn_norm.weight", 0, hidden, Type.F32, 1.0
        yield matrix(p + "ffn_gate.weight", ffn, hidden, gain=2.0)
        yield matrix(p + "ffn_up.weight", ffn, hidden, gain=2.0)
        yield matrix(p + "ffn_down.weight", hidden, ffn, "ffn_down", i)
    yield "output_norm.weight", 0, hidden, Type.F32, 3.0 if s["tied"] else 1.0
    if not s["tied"]:
        yield matrix("output.weight", s["vocab"], hidden, "head", gain=3.0)


# --- values -----------------------------------------------------------------------------------------------

def tile_of(rng, kind, spread):
    """About TILE_BYTES of whole blocks whose values have the wanted spread."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    n = TILE_BYTES // block_bytes
    if kind.name in SCALE_FIELDS:
        return random_blocks(rng, kind, 1, n * block, spread).tobytes()
    values = rng.normal(0, spread, (1, n * block)).astype(np.float32)
    if kind in (Type.F32, Type.F16):
        return values.astype(np.float32 if kind == Type.F32 else np.float16).tobytes()
    return quants.quantize(values, kind).tobytes()


class Tiles:
    def __init__(self, seed):
        self.rng, self.made = np.random.default_rng(seed), {}

    def pieces(self, kind, spread, n_bytes):
        """Byte strings of n_bytes in all, from a random block of the tile on."""
        key = (kind, round(spread, 6))
        if key not in self.made:
            self.made[key] = tile_of(self.rng, kind, spread)
        tile, block_bytes = self.made[key], gguf.GGML_QUANT_SIZES[kind][1]
        at = int(self.rng.integers(0, len(tile) // block_bytes)) * block_bytes
        while n_bytes > 0:
            piece = memoryview(tile)[at:at + n_bytes]
            yield piece
            n_bytes, at = n_bytes - len(piece), 0

    def vector(self, n, mean):
        return self.rng.normal(mean, 0.1, n).astype(np.float32).tobytes()


# --- vocabulary -------------------------------------------------------------------------------------------

def filled_up(tokens, types, vocab):
    """A plain token that no merge makes is never the result of tokenizing."""
    missing = vocab - len(tokens)
    return tokens + [f"<filler_{i}>" for i in range(missing)], types + [int(gguf.TokenType.NORMAL)] * missing


def borrowed_vocabulary(w, path, vocab):
    fields = {n: f for n, f in gguf.GGUFReader(path).fields.items() if n.startswith("tokenizer.")}
    tokens = fields["tokenizer.ggml.tokens"].contents()
    if len(tokens) > vocab:
        sys.exit(f"--tokenizer {path}: {len(tokens)} tokens; the shape has {vocab}: take a smaller one or leave it out")
    if fields["tokenizer.ggml.model"].contents() != "gpt2":
        sys.exit(f"--tokenizer {path}: tokenizer.ggml.model must be gpt2 (byte-level BPE)")
    tokens, types = filled_up(tokens, fields["tokenizer.ggml.token_type"].contents(), vocab)
    w.add_token_list(tokens)
    w.add_token_types(types)
    for name, field in fields.items():
        if name not in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            w.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)


class FilledUp:
    """Hands a vocabulary's calls on to a writer, tokens and types filled up."""

    def __init__(self, writer, vocab):
        self.writer, self.vocab = writer, vocab

    def add_token_list(self, tokens):
        self.tokens = tokens

    def add_token_types(self, types):
        tokens, types = filled_up(self.tokens, [int(t) for t in types], self.vocab)
        self.writer.add_token_list(tokens)
        self.writer.add_token_types(types)

    def __getattr__(self, name):
        return getattr(self.writer, name)


# --- the file ---------------------------------------------------------------------------------------------

def describe(w, name, s, context):
    w.add_type("model")
    w.add_name(f"random {name}")
    w.add_block_count(s["layers"])
    w.add_context_length(context)
    w.add_embedding_length(s["hidden"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(s["head_dim"])
    w.add_rope_freq_base(s["rope_base"])
    w.add_vocab_size(s["vocab"])


FILE_TYPES = {"F32": "ALL_F32", "Q4_K_M": "MOSTLY_Q4_K_M", "Q5_K": "MOSTLY_Q5_K_M", "Q4_K": "MOSTLY_Q4_K_S"}


def write_model(name, type_name, path, tokenizer=None, layers=None, context=8192, seed=1):
    s = dict(SHAPES[name], layers=layers or SHAPES[name]["layers"])
    w = gguf.GGUFWriter(path + ".part", "llama")
    describe(w, name, s, context)
    w.add_file_type(gguf.LlamaFileType[FILE_TYPES.get(type_name, "MOSTLY_" + type_name)])
    if tokenizer:
        borrowed_vocabulary(w, tokenizer, s["vocab"])
    else:
        bpe_vocabulary(FilledUp(w, s["vocab"]), s["pre"])
    plan = []
    for tensor, rows, cols, kind, gain in tensors(s, type_name):
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        n_bytes = max(rows, 1) * cols // block * block_bytes
        plain = kind in (Type.F32, Type.F16)
        w.add_tensor_info(tensor, (rows, cols) if rows else (cols,), np.dtype(np.float32 if kind == Type.F32 else np.float16),
                          n_bytes, raw_dtype=None if plain else kind)
        plan.append((rows, cols, kind, gain, n_bytes))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    out, tiles, total, done, started = w.fout[0], Tiles(seed), sum(p[-1] for p in plan), 0, time.monotonic()
    w.write_padding(out, out.tell())
    for rows, cols, kind, gain, n_bytes in plan:
        if rows:
            for piece in tiles.pieces(kind, gain / math.sqrt(cols), n_bytes):
                out.write(piece)
        else:
            out.write(tiles.vector(cols, gain))
        w.write_padding(out, n_bytes)
        done += n_bytes
        bar(done, total, started)
    w.close()
    os.replace(path + ".part", path)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", nargs="?", choices=SHAPES)
    p.add_argument("type", nargs="?", choices=["Q4_K_M"] + [k.name for k in Type])
    p.add_argument("out", nargs="?")
    p.add_argument("--list", action="store_true", help="print the shapes")
    p.add_argument("--tokenizer", metavar="GGUF", help="file to take the vocabulary from")
    p.add_argument("--layers", type=int, help="fewer or more layers than the real model")
    p.add_argument("--context", type=int, default=8192)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if a.list:
        for name, s in SHAPES.items():
            print(f"{name:14} {s}")
    elif a.shape and a.type and a.out:
        write_model(a.shape, a.type, a.out, a.tokenizer, a.layers, a.context, a.seed)
    else:
        p.error("a shape, a type and an output file are needed, or --list")


if __name__ == "__main__":
    main()
