#!/usr/bin/env python3
"""tally.py EXPECTED_SKIPS JUNIT.xml…: adds up test results, checks skips against the allowed list, and prints
`N passed, N failed, N skipped` as its last line. Exit 1 on a failure, a skip nobody allowed, or no test."""
import sys
import xml.etree.ElementTree as ET


def allowed_skips(path):
    names = {}
    for line in open(path, encoding="utf-8"):
        line = line.strip()
        if line and not line.startswith("#"):
            name, _, reason = line.partition(": ")
            if not reason:
                sys.exit(f"tally: {path}: '{name}' has no reason")
            names[name] = reason
    return names


def main():
    allowed = allowed_skips(sys.argv[1])
    passed, failed, skipped, bad = 0, [], [], []
    for path in sys.argv[2:]:
        for case in ET.parse(path).getroot().iter("testcase"):
            name = f"{case.get('classname', '')}::{case.get('name')}" if "::" not in case.get("name", "") else case.get("name")
            name = case.get("name") if case.get("classname") in (None, case.get("name")) else name
            if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
                failed.append(name)
            elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
                skipped.append(name)
                if name not in allowed:
                    bad.append(name)
            else:
                passed += 1
    for name in failed:
        print(f"failed: {name}")
    for name in skipped:
        print(f"skipped: {name}: {allowed.get(name, 'NOT ALLOWED, see tests/expected_skips')}")
    print(f"{passed} passed, {len(failed) + len(bad)} failed, {len(skipped) - len(bad)} skipped")
    sys.exit(1 if failed or bad or passed == 0 else 0)


if __name__ == "__main__":
    main()
