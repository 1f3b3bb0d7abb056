#!/usr/bin/env python3
"""Writes tests/kernels/golden/golden_blocks.bin: quantized blocks and their floats by the `gguf` package.

    make_golden_blocks.py OUT        needs: pip install gguf numpy

A record a type: u32 ggml type id, u32 bytes of blocks, u32 values, the blocks, the values as float32.
Two kinds of blocks: random bytes with finite scales (every bit pattern of the format is used), and,
where the package can quantize, normally distributed values quantized by it.
"""
import struct
import sys

import gguf
import numpy as np
from gguf import quants

# type -> offsets of half-precision fields inside a block, which must be finite
HALF_FIELDS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
    "MXFP4": [],
}


def random_blocks(rng, name, block_bytes, count):
    blocks = rng.integers(0, 256, size=(count, block_bytes), dtype=np.uint8)
    for offset in HALF_FIELDS[name]:
        halves = rng.normal(0, 0.05, size=count).astype(np.float16)
        blocks[:, offset:offset + 2] = halves.view(np.uint8).reshape(count, 2)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(0, 200, size=count)
        blocks[0, 0], blocks[1, 0] = 0, 1  # the subnormal scales
    return blocks


def main():
    rng = np.random.default_rng(20261129)
    records = []
    for name in HALF_FIELDS:
        kind = gguf.GGMLQuantizationType[name]
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        parts = [random_blocks(rng, name, block_bytes, 4)]
        try:
            values = rng.normal(0, 1, size=(1, 4 * block_size)).astype(np.float32)
            parts.append(quants.quantize(values, kind).reshape(-1, block_bytes))
        except NotImplementedError:
            pass
        blocks = np.concatenate(parts)
        floats = quants.dequantize(blocks.reshape(1, -1), kind).astype(np.float32).reshape(-1)
        records.append((kind.value, blocks.tobytes(), floats))
    for name in ("F16", "BF16"):
        values = rng.normal(0, 1, size=64).astype(np.float32)
        kind = gguf.GGMLQuantizationType[name]
        data = values.astype(np.float16).view(np.uint8) if name == "F16" else quants.quantize(values, kind)
        floats = (data.view(np.float16).astype(np.float32) if name == "F16"
                  else quants.dequantize(data, kind).astype(np.float32).reshape(-1))
        records.append((kind.value, data.tobytes(), floats))
    with open(sys.argv[1], "wb") as out:
        for type_id, blocks, floats in records:
            out.write(struct.pack("<III", type_id, len(blocks), floats.size))
            out.write(blocks)
            out.write(floats.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
