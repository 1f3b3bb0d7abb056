#!/usr/bin/env python3
"""make_random_gguf.py writes files that read back with the shape and types asked for, and logits like a model's.
Exit code 77 (skipped) where the packages of tests/requirements.txt are missing."""
import os
import sys
import tempfile

try:
    import gguf
    import make_random_gguf
    import reference_forward
except ImportError as e:
    print(f"skipped: {e}; pip install -r tests/requirements.txt")
    sys.exit(77)

# Types of (embedding, which is the head here; attn_q; ffn_down of the one layer). 576 columns are no multiple of 256, 1536 are.
EXPECTED = {
    "Q4_K_M": ("Q8_0", "Q5_0", "Q6_K"),
    "Q4_0": ("Q8_0", "Q4_0", "Q4_0"),
    "Q8_0": ("Q8_0", "Q8_0", "Q8_0"),
    "BF16": ("BF16", "BF16", "BF16"),
}


def main():
    problems = []
    with tempfile.TemporaryDirectory() as made:
        for name, expected in EXPECTED.items():
            path = os.path.join(made, name + ".gguf")
            make_random_gguf.write_model("smollm2-135m", name, path, layers=1)
            reader = gguf.GGUFReader(path)
            kinds = {t.name: t.tensor_type.name for t in reader.tensors}
            found = tuple(kinds[n] for n in ("token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"))
            if found != expected:
                problems.append(f"{name}: tensor types {found}, expected {expected}")
            tokens = reader.fields["tokenizer.ggml.tokens"].contents()
            if len(tokens) != 49152 or len(set(tokens)) != len(tokens):
                problems.append(f"{name}: {len(tokens)} tokens, {len(set(tokens))} different; expected 49152")
            logits = reference_forward.forward(reference_forward.Model(path), [1, 2, 3])
            if not 0.1 < logits.std() < 100:
                problems.append(f"{name}: logits spread by {logits.std()}, not like a model's")
    types = [t[3].name for t in make_random_gguf.tensors(make_random_gguf.SHAPES["llama-3.1-8b"], "Q4_K_M")]
    if (types.count("Q6_K"), types.count("Q4_K")) != (33, 193):
        problems.append(f"llama-3.1-8b Q4_K_M: {types.count('Q6_K')} Q6_K and {types.count('Q4_K')} Q4_K, expected 33 and 193")
    print("\n".join(problems) or f"random models: {len(EXPECTED)} types read back")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
