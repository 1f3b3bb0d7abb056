#!/usr/bin/env python3
"""resources.py ALLOWED LOG…: reads what ptxas -v said of each kernel and prints one row a kernel: registers on each
architecture, shared memory, spilled bytes. Exit 1 on a spill that ALLOWED does not list, on a listed one that is gone,
and on a log without kernels that names a file of kernels. ALLOWED: `ARCH KERNEL BYTES: reason` a line, BYTES an upper bound."""
import os
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+\w?)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def short(name):
    """tandem::matvec_kernel<(tandem::GgmlType)12, (tandem::DotPath)0, (int)1>(…) -> matvec_kernel<12,0,1>"""
    name = re.sub(r"\(anonymous namespace\)::|tandem::|^void ", "", name)
    name = re.sub(r"\((?:GgmlType|DotPath|KvType|int)\)", "", name)
    return re.sub(r"\s", "", name.split(">(")[0] + ">" if ">(" in name else name.split("(")[0])


def read(paths):
    """{mangled kernel: {arch: (registers, shared bytes, spilled bytes)}}"""
    kernels = {}
    for path in paths:
        kernel = arch = None
        spilled = 0
        for line in open(path, encoding="utf-8", errors="replace"):
            if m := ENTRY.search(line):
                kernel, arch, spilled = m.group(1), m.group(2), 0
            elif (m := SPILL.search(line)) and kernel:
                spilled = int(m.group(2)) + int(m.group(3))
            elif (m := USED.search(line)) and kernel:
                kernels.setdefault(kernel, {})[arch] = (int(m.group(1)), int(m.group(2) or 0), spilled)
                kernel = None
    return kernels


def main():
    allowed_path, logs = sys.argv[1], sys.argv[2:]
    allowed = {}
    for line in open(allowed_path, encoding="utf-8"):
        if line.strip() and not line.startswith("#"):
            key, _, reason = line.strip().partition(": ")
            arch, kernel, most = key.split()
            if not reason:
                sys.exit(f"resources: {allowed_path}: {kernel} has no reason")
            allowed[(arch, kernel)] = int(most)
    kernels = read(logs)
    if not kernels:
        sys.exit(f"resources: no kernel in {len(logs)} logs")
    mangled = sorted(kernels)
    names = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout.split("\n")
    archs = sorted({a for k in kernels.values() for a in k}, key=lambda a: int(re.sub(r"\D", "", a)))
    print(f"{'registers on':44}" + "".join(f"{a:>8}" for a in archs) + "   shared  spilled")
    problems, seen = [], set()
    for key, name in sorted(zip(mangled, names), key=lambda x: short(x[1])):
        rows, kernel = kernels[key], short(name)
        shared = max(r[1] for r in rows.values())
        spills = {a: r[2] for a, r in rows.items() if r[2]}
        print(f"{kernel:44}" + "".join(f"{rows[a][0] if a in rows else '-':>8}" for a in archs) +
              f"{shared:9}  {' '.join(f'{a}:{b}' for a, b in spills.items()) or '-'}")
        for arch, bytes_ in spills.items():
            seen.add((arch, kernel))
            if bytes_ > allowed.get((arch, kernel), 0):
                problems.append(f"{kernel} spills {bytes_} bytes on {arch}, allowed {allowed.get((arch, kernel), 0)}")
    for arch, kernel in sorted(set(allowed) - seen):
        if arch in archs:
            problems.append(f"{kernel} on {arch} no longer spills: take it off {os.path.basename(allowed_path)}")
    for p in problems:
        print("resources:", p)
    print(f"resources: {len(kernels)} kernels, {len(archs)} architectures, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
