#!/usr/bin/env python3
"""tests/golden/families are what their scripts make: models byte for byte, references to the last digit kept.
Exit code 77 (skipped) where the packages of tests/requirements.txt are missing."""
import json
import os
import sys
import tempfile

try:
    import make_tiny_gguf
    import reference_forward
except ImportError as e:
    print(f"skipped: {e}; pip install -r tests/requirements.txt")
    sys.exit(77)

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "families")


def read(path, mode="rb"):
    with open(path, mode) as f:
        return f.read()


def same_reference(a, b):
    """Equal up to the summation order of another BLAS: ids and order, values to 1e-6."""
    a, b = json.loads(a), json.loads(b)
    if a["model"] != b["model"] or a["ids"] != b["ids"]:
        return False
    for key in ("logprobs", "logprobs_f16_kv"):
        for (pos, best), (other_pos, other) in zip(a[key], b[key], strict=True):
            if pos != other_pos or any(abs(x[1] - y[1]) > 1e-6 for x, y in zip(best, other, strict=True)):
                return False
    return True


def main():
    problems = []
    with tempfile.TemporaryDirectory() as made:
        for name in make_tiny_gguf.VARIANTS:
            model, reference = (os.path.join(made, name + end) for end in (".gguf", ".json"))
            make_tiny_gguf.write_model(name, model)
            if read(model) != read(os.path.join(FOLDER, name + ".gguf")):
                problems.append(f"{name}.gguf is not what make_tiny_gguf.py writes")
            reference_forward.write_reference(model, reference, 56)
            if not same_reference(read(reference), read(os.path.join(FOLDER, name + ".json"))):
                problems.append(f"{name}.json is not what reference_forward.py writes")
        for kind in ("F32", "BF16", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"):
            path = os.path.join(made, kind + ".gguf")
            make_tiny_gguf.write_model("llama", path, kind, hidden=256, ffn=256, layers=1)
            logits = reference_forward.forward(reference_forward.Model(path), [1, 2, 3])
            if not 0.1 < logits.std() < 100:
                problems.append(f"{kind}: logits spread by {logits.std()}, not like a model's")
        extra = {n[:-5] for n in os.listdir(FOLDER) if n.endswith(".gguf")} ^ set(make_tiny_gguf.VARIANTS)
        if extra:
            problems.append(f"files without a variant, or the other way round: {sorted(extra)}")
    print("\n".join(problems) or f"tiny models: {len(make_tiny_gguf.VARIANTS)} variants as committed")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
