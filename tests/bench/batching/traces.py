"""Prompts and arrivals, from fixed seeds: every variant of a case gets the same ones."""
import random
import shutil
import struct


def ids(n, seed):
    """n token ids no other seed begins with, so that no prompt is answered from the prefix cache by accident."""
    return [1000 + (seed * 131 + i * 17) % 19000 for i in range(n)]


def poisson(n, per_second, seed):
    rng, at, out = random.Random(seed), 0.0, []
    for _ in range(n):
        at += rng.expovariate(per_second)
        out.append(at)
    return out


def mixed(n, n_long, short, long, prompt, seed):
    """n requests of which n_long at random places have long answers: [(prompt ids, new tokens)]."""
    places = set(random.Random(seed).sample(range(n), n_long))
    return [(ids(prompt, seed * 1000 + i), long if i in places else short) for i in range(n)]


def typical(n, n_long, short, long, prompt, lanes):
    """`mixed` with the first seed for which as many batches of `lanes` in a row contain a long answer as independent draws
    would have on average, so that a short trace has the cost of a long one."""
    expected = round(n / lanes * (1 - (1 - n_long / n) ** lanes))
    for seed in range(1, 1000):
        trace = mixed(n, n_long, short, long, prompt, seed)
        batches = sum(any(new == long for _, new in trace[i:i + lanes]) for i in range(0, n, lanes))
        if batches == expected:
            return trace
    raise RuntimeError("no typical trace")


def with_context(model, path, tokens):
    """Copies a GGUF with another llama.context_length: the speed beyond the trained context is real, the text is not."""
    shutil.copyfile(model, path)
    key = b"llama.context_length"
    with open(path, "r+b") as f:
        at = f.read(1 << 24).index(key) + len(key)
        f.seek(at)
        if struct.unpack("<I", f.read(4))[0] != 4:  # uint32
            raise RuntimeError(f"{model}: llama.context_length isn't a uint32")
        f.write(struct.pack("<I", tokens))
    return path
