#!/usr/bin/env python3
"""Writes tests/quantize/golden/quantized.bin: floats, and the blocks the `gguf` package makes of them.

    make_golden_quantized.py OUT        needs: pip install gguf numpy

u32 number of values, the values as float32, then a record a type: u32 ggml type id, u32 bytes, the blocks. The package's
quantizers are independent of this project and equal ggml's reference (its own tests hold them against the C library).
"""
import struct
import sys

import gguf
import numpy as np
from gguf import quants

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def main():
    rng = np.random.default_rng(20261130)
    rows = [rng.normal(0, sigma, 32) for sigma in (1, 1, 0.02, 0.02, 300, 1e-4, 1e-6)]
    rows += [rng.uniform(0, 1, 32), rng.uniform(-3, -1, 32), rng.laplace(0, 0.05, 32), rng.standard_cauchy(32)]
    rows += [np.zeros(32), np.full(32, 0.75), np.full(32, -0.75), np.linspace(-1, 1, 32), np.arange(32) - 15.5]
    rows.append(np.where(np.arange(32) == 5, 8.0, rng.normal(0, 0.1, 32)))   # an outlier
    rows.append(np.where(np.arange(32) % 2, 1.0, -1.0))                      # two extremes of one magnitude
    x = np.concatenate(rows).astype(np.float32)
    with open(sys.argv[1], "wb") as out:
        out.write(struct.pack("<I", x.size) + x.tobytes())
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            blocks = quants.quantize(x.reshape(1, -1), kind).tobytes()
            out.write(struct.pack("<II", kind.value, len(blocks)) + blocks)


if __name__ == "__main__":
    main()
