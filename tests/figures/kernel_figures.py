#!/usr/bin/env python3
"""Figures of the kernels that no neighbour on the machine can change: instructions executed, counted by callgrind
(scalar and AVX2 columns, fixed shapes), and cycles of inner loops, estimated by llvm-mca (AVX-512 and AVX-VNNI
columns), which also must not spill. kernel_figures.txt keeps them; a figure that grows by more than 3 % fails.

  kernel_figures.py calls BUILD            check instruction counts (BUILD: a preset dev build folder)
  kernel_figures.py loops BUILD            check loops
  kernel_figures.py record BUILD           write what this tree has into kernel_figures.txt; say why in the commit
  kernel_figures.py planted BUILD          every planted fault must be found

The figures belong to g++ 12 at the preset's options; another compiler needs its own record."""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
STORED = HERE / "kernel_figures.txt"
TOLERANCE = 0.03

# (name, file in kernels/, functions whose name matches, instruction that counts, processor model). The loop is the
# innermost one of these functions that holds most of the instruction.
VNNI, DENSE, BF16, ATTENTION = ("%s.cc" % f for f in ("matmul_avx512vnni", "matmul_dense_avx512vnni",
                                                      "matmul_dense_avx512bf16", "attention_avx512vnni"))
LOOPS = [
    ("matmul Q4_0, 8 rows", VNNI, r"multiply<.*GgmlType\)2>, 8>", "vpdpbusd", "znver4"),
    ("matmul Q4_0, 1 row", VNNI, r"multiply<.*GgmlType\)2>, 1>", "vpdpbusd", "znver4"),
    ("matmul Q4_K, 4 rows", VNNI, r"multiply<.*GgmlType\)12>, 4>", "vpdpbusd", "znver4"),
    ("matmul Q4_K, 1 row", VNNI, r"multiply<.*GgmlType\)12>, 1>", "vpdpbusd", "znver4"),
    ("matmul Q6_K, 1 row", VNNI, r"multiply<.*GgmlType\)14>, 1>", "vpdpbusd", "znver4"),
    ("attention f16 scores", ATTENTION, r"paged::score<4, .*KvType\)0, false", "vfmadd", "znver4"),
    ("attention f16 values", ATTENTION, r"paged::attend_rows<4, .*KvType\)0, false", "vfmadd", "znver4"),
    ("attention f16 scores, decode", ATTENTION, r"paged::score<4, .*KvType\)0, true", "vfmadd", "znver4"),
    ("attention q8_0 scores", ATTENTION, r"paged::score<4, .*KvType\)1, false", "vfmadd", "znver4"),
    ("attention q8_0 values", ATTENTION, r"paged::attend_rows<4, .*KvType\)1, false", "vfmadd", "znver4"),
    ("dense F16, 12 rows", DENSE, r"dense::multiply\w*<.*GgmlType\)1, 2, 12>", "vfmadd", "znver4"),
    ("dense BF16, 12 rows", BF16, r"multiply\w*<2, 12>", "vdpbf16ps", "znver4"),
]
# Eight rows and a prefetched tile, or twelve rows, have more addresses than there are integer registers; reading one
# from the stack costs nothing beside 24 products and more. No vector may go there.
ADDRESSES_MAY_SPILL = {"matmul Q4_0, 8 rows", "dense F16, 12 rows", "dense BF16, 12 rows"}


def fail(text):
    print(text)
    sys.exit(1)


def read_stored():
    figures = {}
    for line in STORED.read_text().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit("\t", 1)
            figures[name] = int(value)
    return figures


def instruction_counts(build, program, arguments=(), at_least=10):
    """{name of a marked call: instructions}"""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--callgrind-out-file=" + folder + "/out",
                   str(build / "tests/figures" / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            fail(done.stderr)
        counts = {}
        for path in pathlib.Path(folder).glob("out*"):
            text = path.read_text()
            name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
            total = re.search(r"^(?:summary|totals): (\d+)$", text, re.M)
            if name and total:
                counts[name.group(1)] = int(total.group(1))
        if len(counts) < at_least:
            fail("callgrind counted %d calls only" % len(counts))
        return counts


def op_figures(build, planted=()):
    return {"calls " + name: count for name, count in instruction_counts(build, "kernel_calls", planted).items()}


def assembly(build, source):
    """Lines of the file's assembly, compiled as the build does."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"].endswith("/kernels/" + source):
            command = shlex.split(entry["command"])
            at = command.index("-o")
            del command[at:at + 2]
            command = [c for c in command if c not in ("-c", "-g") and not c.endswith("ccache")]
            done = subprocess.run(command + ["-S", "-o", "-"], capture_output=True, text=True, cwd=entry["directory"])
            if done.returncode != 0:
                fail(done.stderr)
            return done.stdout.splitlines()
    fail("no %s in %s/compile_commands.json" % (source, build))


def demangle(names):
    return subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True).stdout.splitlines()


def functions(lines):
    """{demangled name: lines}."""
    found, name = {}, None
    for line in lines:
        label = re.match(r"(_Z\w+):", line)
        if label:
            name = label.group(1)
            found[name] = []
        elif name and line.strip().startswith(".size"):
            name = None
        elif name:
            found[name].append(line)
    return dict(zip(demangle(list(found)), found.values()))


def innermost_loops(lines):
    """Instructions from a label to a jump back to it, with no other such run inside. Branches that only go forward (a
    prefetch that the last round leaves out) belong to the loop and are counted as taken in order."""
    labels, body, loops = {}, [], []
    for line in lines:
        new = re.match(r"(\.L\w+):", line)
        if new:
            labels[new.group(1)] = len(body)
        elif line.startswith("\t") and not line.strip().startswith("."):
            text = line.split("#")[0].strip()
            body.append(text)
            jump = re.match(r"j\w+\s+(\.L\w+)$", text)
            if jump and jump.group(1) in labels:
                loops.append((labels[jump.group(1)], len(body)))
    for first, last in loops:
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in loops):
            yield body[first:last]


def find_loop(build, loop, cache):
    name, source, pattern, instruction, _ = loop
    if source not in cache:
        cache[source] = functions(assembly(build, source))
    best = []
    for function, lines in cache[source].items():
        if not re.search(pattern, function):
            continue
        for body in innermost_loops(lines):
            if sum(instruction in i for i in body) > sum(instruction in i for i in best):
                best = body
    if not best:
        fail("%s: no loop with %s in functions like %s of %s" % (name, instruction, pattern, source))
    return best


def spills(body, name):
    """Stack accesses at a fixed place: a value that found no register. Arrays on the stack have an index."""
    found = [i for i in body if re.search(r"-?\d*\(%rsp\)", i)]
    if name in ADDRESSES_MAY_SPILL:
        found = [i for i in found if re.search(r"%[xyz]mm", i) or re.search(r"^(?!cmp|test).*\(%rsp\)$", i)]
    return found


def cycles(body, processor):
    done = subprocess.run(["llvm-mca-16", "-mcpu=" + processor, "-iterations=100"], input="\n".join(body) + "\n",
                          capture_output=True, text=True)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if not total:
        fail("llvm-mca: " + done.stderr)
    return int(total.group(1))


def loop_figures(build, change=None):
    """{name: cycles of 100 rounds}, and what is wrong with the loops. change: applied to each loop first."""
    figures, wrong, cache = {}, [], {}
    for loop in LOOPS:
        body = find_loop(build, loop, cache)
        if change:
            body = change(body, loop)
        figures["loop %s (%s)" % (loop[0], loop[4])] = cycles(body, loop[4])
        wrong += ["%s spills: %s" % (loop[0], i) for i in spills(body, loop[0])]
    return figures, wrong


def compare(figures, stored, kind):
    wrong = []
    for name, value in sorted(figures.items()):
        if name not in stored:
            wrong.append("%s: %d, not in %s" % (name, value, STORED.name))
            continue
        change = value / stored[name] - 1
        note = "" if abs(change) <= TOLERANCE else "  GREW" if change > 0 else "  less: record it"
        print("%-44s %9d  %+6.1f %%%s" % (name, value, 100 * change, note))
        if change > TOLERANCE:
            wrong.append("%s grew from %d to %d (%+.1f %%)" % (name, stored[name], value, 100 * change))
    wrong += ["%s is gone" % n for n in stored if n.startswith(kind + " ") and n not in figures]
    return wrong


def report(wrong):
    if wrong:
        fail("\n".join(wrong) + "\nif it is meant: %s record BUILD" % pathlib.Path(__file__).name)


def planted(build):
    wrong = compare(op_figures(build, ["avx2/add"]), read_stored(), "calls")
    if not any("avx2/add" in w for w in wrong):
        fail("three calls instead of one were not seen")
    _, wrong = loop_figures(build, lambda body, loop: ["vmovaps %zmm0, 64(%rsp)"] + body)
    if len(wrong) != len(LOOPS):
        fail("a spill in each loop: seen in %d of %d" % (len(wrong), len(LOOPS)))

    def slow(body, loop):
        return body[:-1] + [i for i in body if loop[3] in i] + body[-1:]

    grown = compare(loop_figures(build, slow)[0], read_stored(), "loop")
    if len(grown) != len(LOOPS):
        fail("twice the products in each loop: seen in %d of %d" % (len(grown), len(LOOPS)))
    print("all planted faults were found")


def record(build):
    figures = op_figures(build)
    loops, wrong = loop_figures(build)
    report(wrong)
    figures.update(loops)
    STORED.write_text("# Written by kernel_figures.py record: instructions of a call, cycles of 100 rounds of a loop.\n" +
                      "".join("%s\t%d\n" % (n, v) for n, v in sorted(figures.items())))


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("calls", "loops", "record", "planted"):
        fail(__doc__)
    build = pathlib.Path(sys.argv[2]).resolve()
    if sys.argv[1] == "record":
        return record(build)
    if sys.argv[1] == "planted":
        return planted(build)
    if sys.argv[1] == "calls":
        return report(compare(op_figures(build), read_stored(), "calls"))
    figures, wrong = loop_figures(build)
    report(wrong + compare(figures, read_stored(), "loop"))



if __name__ == "__main__":
    main()
