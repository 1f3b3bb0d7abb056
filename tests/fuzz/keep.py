#!/usr/bin/env python3
"""keep.py SECONDS RUNS BIN_DIR TARGET:MAX_LEN…: fuzzes for long, two targets at a time, and keeps what came of it.
Appends one line a target to log.jsonl, also when interrupted, then merges the finds into corpus/TARGET.tar.xz.
RUNS (0: no bound) ends a target earlier. Started by `run --keep`, which builds."""
import argparse
import contextlib
import datetime
import glob
import io
import lzma
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

import fuzz_log

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build", "fuzz")
INTERRUPTED, TIMEOUT = 72, 70  # libFuzzer's own exit statuses
HANGS_CPU_SECONDS = 10
AT_A_TIME = 2

stopping = threading.Event()
running = {}  # target: its process and its Progress


def seeds(target):
    return os.path.join(HERE, "corpus", target)


def archive(target):
    return os.path.join(HERE, "corpus", target + ".tar.xz")


def made(*parts):
    path = os.path.join(BUILD, *parts)
    os.makedirs(path, exist_ok=True)
    return path


def emptied(*parts):
    shutil.rmtree(os.path.join(BUILD, *parts), ignore_errors=True)
    return made(*parts)


def kept(target):
    return made("kept", target)  # unpacked by `run`


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        fields = f.read().rpartition(")")[2].split()  # from the third on: the second is a name in brackets
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Progress:
    """What a run says of itself, line by line: `#12 NEW cov: 345 ft: …`, `stat::number_of_executed_units: 99`.
    Its clock is processor time, else a run that others crowd out would count as one that finds nothing."""

    def __init__(self, clock):
        self.clock, self.executions, self.edges, self.new_edges, self.last_new = clock, 0, 0, 0, None

    def read(self, line):
        if stat := re.match(r"stat::number_of_executed_units: *(\d+)", line):
            self.executions = int(stat[1])
        if not (pulse := re.match(r"#(\d+)\s+(\w+) +cov: (\d+)", line)):
            return
        self.executions, edges = int(pulse[1]), int(pulse[3])
        if self.last_new is None or pulse[2] == "INITED":
            self.edges, self.new_edges, self.last_new = edges, 0, self.clock()
        elif edges > self.edges:
            self.new_edges += edges - self.edges
            self.edges, self.last_new = edges, self.clock()

    def quiet(self):
        return 0 if self.last_new is None else self.clock() - self.last_new


def say(text):
    print(f"{datetime.datetime.now(datetime.timezone.utc):%H:%M:%S} {text}", flush=True)


def hangs(target, args):
    """Inputs that took long by the clock, and again by processor time. Those that others crowded out are removed."""
    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (HANGS_CPU_SECONDS, HANGS_CPU_SECONDS))
    failing = []
    for kind in ("slow-unit", "timeout"):
        for path in glob.glob(f"{BUILD}/failures/{target}-{kind}-*"):
            if subprocess.run([os.path.join(args.bin, target), path], capture_output=True, preexec_fn=limit).returncode == 0:
                os.remove(path)
            else:
                failing.append(path)
    return failing


def fuzz(target, max_len, args, commit):
    """One run and its line in the log. True unless an input failed."""
    # Not by entropy: counting rare features takes a third of the processor's time. Short runs choose inputs so.
    command = ["nice", os.path.join(args.bin, target), f"-max_total_time={args.seconds}", f"-runs={args.runs or -1}", "-entropic=0",
               f"-max_len={max_len}", "-timeout=300", "-rss_limit_mb=2048", "-print_final_stats=1",
               f"-artifact_prefix={BUILD}/failures/{target}-", made("found", target), seeds(target), kept(target)]
    begin = time.monotonic()
    # A group of its own: an interrupt at the terminal reaches it once, from here.
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                          preexec_fn=os.setpgrp) as child, open(os.path.join(made("logs"), target + ".log"), "w") as log:
        progress = Progress(lambda: cpu_seconds(child.pid))
        running[target] = child, progress
        if stopping.is_set():
            child.send_signal(signal.SIGINT)
        for line in child.stderr:
            log.write(line)
            progress.read(line)
        cpu, quiet = progress.clock(), progress.quiet()  # it may have ended, but is not reaped yet
        del running[target]
    ok = child.returncode in (0, INTERRUPTED, TIMEOUT) and not hangs(target, args)
    run = {"date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}", "commit": commit, "target": target,
           "seconds": round(time.monotonic() - begin), "cpu_seconds": round(cpu), "executions": progress.executions,
           "edges": progress.edges, "new_edges": progress.new_edges, "quiet_cpu_seconds": int(quiet),
           "outcome": "ok" if ok else "crash"}
    fuzz_log.append(run)
    say(f"{target}: " + ", ".join(f"{v} {k}" for k, v in run.items() if k not in ("date", "commit", "target", "outcome")) +
        ("" if ok else f"   FAILED, see {log.name}"))
    return ok


def packed(folder, names):
    """The same bytes for the same files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(names):
            member = tarfile.TarInfo(name)
            member.size = os.path.getsize(os.path.join(folder, name))
            with open(os.path.join(folder, name), "rb") as f:
                tar.addfile(member, f)
    return lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def keep(target, max_len, args):
    """Seeds stay as they are; of what was found, the fewest inputs that reach as much go to the archive."""
    merged, found = emptied("merged", target), made("found", target)
    for name in os.listdir(seeds(target)):
        shutil.copy(os.path.join(seeds(target), name), merged)
    known = set(os.listdir(merged))
    merge = subprocess.run([os.path.join(args.bin, target), "-merge=1", "-set_cover_merge=1", f"-max_len={max_len}",
                            "-timeout=300", "-rss_limit_mb=2048", f"-artifact_prefix={BUILD}/failures/{target}-", merged, found,
                            kept(target)], capture_output=True, text=True, errors="replace", preexec_fn=os.setpgrp)
    if merge.returncode != 0:
        say(f"{target}: merge failed\n{merge.stderr[-2000:]}")
        return False
    names = sorted(set(os.listdir(merged)) - known, key=lambda n: os.path.getsize(os.path.join(merged, n)))
    shutil.rmtree(found)
    os.makedirs(found)
    for name in names:
        os.rename(os.path.join(merged, name), os.path.join(found, name))
    n_kept = len(names)
    while len(data := packed(found, names[:n_kept])) > fuzz_log.MAX_ARCHIVE_BYTES:
        n_kept = int(n_kept * min(0.97, fuzz_log.MAX_ARCHIVE_BYTES / len(data)))
    with open(archive(target), "wb") as f:
        f.write(data)
    left_out = f", the {len(names) - n_kept} largest left out" if n_kept < len(names) else ""
    say(f"{target}: {n_kept} inputs kept in {len(data)} bytes{left_out}")
    return True


def interrupt(*_):
    stopping.set()
    for child, _ in list(running.values()):
        child.send_signal(signal.SIGINT)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=int)
    parser.add_argument("runs", type=int)
    parser.add_argument("bin")
    parser.add_argument("targets", nargs="+")
    args = parser.parse_args()
    # The last commit of what is fuzzed, not of the log and the corpora, which change with every run.
    commit = subprocess.run(["git", "log", "-1", "--format=%h", "--", "src", "kernels"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.strip()
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    waiting = [t.split(":") for t in args.targets]
    failed = []

    def work():
        while waiting and not stopping.is_set():
            target, max_len = waiting.pop(0)
            ok = fuzz(target, max_len, args, commit)
            if not (keep(target, max_len, args) and ok):
                failed.append(target)

    threads = [threading.Thread(target=work) for _ in range(AT_A_TIME)]
    for thread in threads:
        thread.start()
    begin = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.5)
        if time.monotonic() - begin >= 60:
            begin = time.monotonic()
            for target, (_, progress) in list(running.items()):
                with contextlib.suppress(OSError):  # it may end just now
                    say(f"{target}: {progress.executions:,} executions or more, {progress.edges} edges, none new for "
                        f"{progress.quiet():.0f} processor seconds")
    say(f"fuzz: {len(failed)} failures" + (": " + ", ".join(failed) if failed else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
