#!/usr/bin/env python3
"""A key's look-up takes the same instructions whichever byte of a stored digest is the first wrong one, and wherever the right entry
stands: counted by callgrind. Time then tells nothing about the keys that exist.

  key_figures.py BUILD    BUILD: a preset dev build folder"""
import pathlib
import sys

import kernel_figures


def groups(build, *arguments):
    """{"unknown": instructions of each call, "known": …}"""
    found = {}
    for name, count in kernel_figures.instruction_counts(build, "key_calls", arguments, at_least=5).items():
        found.setdefault(name.split(",")[0], {})[name] = count
    return found


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1]).resolve()
    found = groups(build)
    for calls in found.values():
        for name, count in sorted(calls.items()):
            print(f"{name:40} {count:8} instructions")
    if sorted(map(len, found.values())) != [3, 5]:
        sys.exit(f"counted {found}")
    if any(len(set(calls.values())) != 1 for calls in found.values()):
        sys.exit("the look-up's length depends on the keys")
    planted = groups(build, "planted")
    if any(len(set(calls.values())) == 1 for calls in planted.values()):
        sys.exit(f"planted fault, a comparison that ends at the first wrong byte: not seen in {planted}")
    print("planted fault found: a comparison that ends at the first wrong byte")


if __name__ == "__main__":
    main()
