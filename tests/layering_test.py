#!/usr/bin/env python3
"""Holds the include arrows of README.md against the tree: which room may include which, and which
third-party headers. A planted violation of each kind must be reported first, else the test itself fails."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Room -> rooms it may include (itself always). Not transitive.
ARROWS = {
    "kernels": [],
    "src/base": [],
    "src/jinja": ["src/base"],
    "src/gguf": ["src/base", "kernels"],
    "src/quantize": ["src/base", "src/gguf", "kernels"],
    "src/tokenizer": ["src/base", "src/jinja"],
    "src/model": ["src/base", "src/gguf", "kernels"],
    "cpu": ["src/base", "kernels", "src/model", "src/gguf"],
    "gpu": ["src/base", "kernels", "src/model", "src/gguf"],
    "src/engine": ["src/base", "src/model"],
    "src/ipc": ["src/base"],
    "src/admission": ["src/base", "src/ipc"],
    "src/requestlog": ["src/base", "src/ipc"],
    "src/metrics": ["src/base", "src/ipc"],
    "src/api": ["src/base", "src/ipc"],
    "src/supervisor": ["src/base", "src/ipc", "src/api", "src/admission", "src/requestlog", "src/metrics"],
    "src/worker": ["src/base", "src/ipc", "kernels", "src/gguf", "src/quantize", "src/jinja", "src/tokenizer", "src/model",
                   "src/engine", "cpu", "gpu"],
    "src/ctl": ["src/base", "src/ipc"],
}
# Third-party header prefix -> rooms that may include it; `heavy` ones also bound the number of files a room.
THIRD_PARTY = {
    "spdlog/": ["src/base"],
    "toml++/": ["src/base"],
    "nlohmann/": ["src/api", "src/supervisor", "src/ctl", "src/worker"],
    "CLI/": ["src/ctl", "src/supervisor", "src/worker"],
    "httplib.h": ["src/api", "src/ctl"],
    "sqlite3.h": ["src/requestlog", "src/ctl"],
    "prometheus/": ["src/metrics"],
    "pcre2.h": ["src/tokenizer", "src/api"],
    "utf8proc.h": ["src/tokenizer", "src/jinja", "src/base", "src/api"],
    "xxhash.h": ["src/engine", "src/worker", "cpu"],
    "hwloc": ["cpu"],
    "seccomp.h": ["src/worker"],
    "systemd/": ["src/supervisor"],
    "openssl/": ["src/api", "src/base"],
    "archive.h": ["src/base", "src/ctl"],
    "archive_entry.h": ["src/base", "src/ctl"],
    "curl/": ["src/ctl"],
    "omp.h": ["cpu"],
    "fmt/": [r for r in ARROWS if r != "kernels"],
}
# Headers that cost seconds to compile: how many .cc of a room may include them, and no header may.
HEAVY = {"CLI/": 1, "toml++/": 2, "spdlog/": 1, "httplib.h": 4, "nlohmann/": 8}
# kernels/ sees C-like standard headers and intrinsics only.
KERNEL_HEADERS = {"stddef.h", "stdint.h", "string.h", "math.h", "float.h", "limits.h", "immintrin.h", "arm_neon.h",
                  "assert.h", "stdlib.h", "stdio.h"}
# CUDA's own headers: .cu and .cuh of kernels/, and gpu/ without gpu_backend.h, the one header others include.
CUDA_HEADERS = {"cuda_runtime_api.h", "cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cuda.h"}

# The one file whose code may differ between nvcc and the stand-in of tests/simt: all that no test runs without a card.
TWO_BODIED = "kernels/device_math.cuh"


def room_of(path):
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "src" else parts[0]


def includes(text):
    for number, line in enumerate(text.split("\n"), 1):
        if m := re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line):
            yield number, m.group(1) == '"', m.group(2)


def check(files):
    """files: {path: text} -> list of violations."""
    problems, heavy = [], {}
    headers = set(files)
    for path, text in sorted(files.items()):
        room = room_of(path)
        if room not in ARROWS:
            problems.append(f"{path}: folder {room} is no room of ARROWS")
            continue
        if path.endswith((".cu", ".cuh")) and path != TWO_BODIED:
            if m := re.search(r"\b(__CUDACC__|__CUDA_ARCH__|TANDEM_SIMT|asm)\b", text):
                problems.append(f"{path}: {m.group(1)} belongs into {TWO_BODIED}, the list of what only a card can test")
        for number, quoted, name in includes(text):
            at = f"{path}:{number}: {room}"
            target = next((p for p in (name, "src/" + name) if p in headers), None)
            if quoted and target:
                other = room_of(target)
                if other != room and other not in ARROWS[room]:
                    problems.append(f"{at} may not include {other} ({name})")
                continue
            if not quoted and name in CUDA_HEADERS:
                if not (room == "kernels" and path.endswith((".cu", ".cuh"))) and \
                        not (room == "gpu" and not path.endswith("/gpu_backend.h")):
                    problems.append(f"{at} may not include <{name}>: CUDA types live in .cu, .cuh and gpu/")
                continue
            prefix = next((p for p in THIRD_PARTY if name.startswith(p)), None)
            if prefix and room not in THIRD_PARTY[prefix]:
                problems.append(f"{at} may not include <{name}>")
            if prefix in HEAVY:
                if path.endswith(".h"):
                    problems.append(f"{at}: heavy <{name}> in a header")
                heavy.setdefault((room, prefix), set()).add(path)
            if "/" in name and not prefix and not name.startswith(("sys/", "linux/", "netinet/", "arpa/", "asm/")):
                problems.append(f"{at} includes unknown third-party <{name}>; give it a row in THIRD_PARTY")
            if room == "kernels" and not prefix and name not in KERNEL_HEADERS:
                problems.append(f"{at} may not include <{name}>: no STL, no system headers")
    for (room, prefix), paths in heavy.items():
        if len(paths) > HEAVY[prefix]:
            problems.append(f"{room}: {len(paths)} files include heavy {prefix}, allowed {HEAVY[prefix]}: {sorted(paths)}")
    return problems


PLANTED = {
    "kernels includes model": {"kernels/a.cc": '#include "model/x.h"', "src/model/x.h": ""},
    "kernels includes STL": {"kernels/a.cc": "#include <vector>"},
    "supervisor includes engine": {"src/supervisor/a.cc": '#include "engine/e.h"', "src/engine/e.h": ""},
    "json outside the API": {"src/engine/a.cc": "#include <nlohmann/json.hpp>"},
    "heavy header in a header": {"src/ctl/a.h": "#include <CLI/CLI.hpp>"},
    "unknown library": {"src/engine/a.cc": "#include <boost/any.hpp>"},
    "CUDA in a plain kernel header": {"kernels/a.h": "#include <cuda_runtime_api.h>"},
    "CUDA in the backend's header": {"gpu/gpu_backend.h": "#include <cuda_runtime_api.h>"},
    "a kernel with a second body": {"kernels/a.cu": "#ifdef __CUDACC__"},
    "unknown room": {"src/misc/a.cc": ""},
}


def main():
    for name, files in PLANTED.items():
        if not check(files):
            sys.exit(f"layering: planted violation not reported: {name}")
    files = {}
    for top in ("kernels", "cpu", "gpu", "src"):
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in names:
                if name.endswith((".cc", ".h", ".cu", ".cuh", ".def")):
                    path = os.path.join(folder, name)
                    files[os.path.relpath(path, ROOT)] = open(path, encoding="utf-8").read()
    problems = check(files)
    long = [f"{p}: {n} lines, allowed 800" for p, t in sorted(files.items()) if (n := t.count("\n")) > 800]
    for line in problems + long:
        print("layering:", line)
    print(f"layering: {len(files)} files, {len(PLANTED)} planted violations reported, {len(problems + long)} problems")
    sys.exit(1 if problems or long else 0)


if __name__ == "__main__":
    main()
