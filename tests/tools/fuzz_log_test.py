#!/usr/bin/env python3
"""What tests/fuzz adds up from its log, reads from a run, and keeps as corpora. Runs no fuzz target."""
import os
import sys
import tempfile
import unittest

FUZZ = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fuzz")
sys.path.insert(0, FUZZ)
sys.dont_write_bytecode = True
import fuzz_log  # noqa: E402
import keep  # noqa: E402
import make_corpus  # noqa: E402

M = 1_000_000


def run(target, executions=0, edges=10, new_edges=0, quiet=0, outcome="ok"):
    return {"target": target, "executions": executions, "edges": edges, "new_edges": new_edges, "quiet_cpu_seconds": quiet,
            "outcome": outcome}


class Summary(unittest.TestCase):
    enough = [run(t, 30 * M, quiet=1800) for t in "abc"] + [run("d", 10 * M, quiet=1800)]

    def lacks(self, runs):
        return fuzz_log.summary(runs, "abcd")[1]

    def test_goal_holds_just(self):
        self.assertEqual(self.lacks(self.enough), [])

    def test_each_condition_fails_alone(self):
        for at, change, word in ((3, {"executions": 10 * M - 1}, "99,999,999 of 100,000,000"),
                                 (2, {"quiet_cpu_seconds": 1799}, "c: 1799 of 1800 s")):
            runs = [dict(r) for r in self.enough]
            runs[at].update(change)
            self.assertEqual(len(self.lacks(runs)), 1, change)
            self.assertIn(word, self.lacks(runs)[0])

    def test_a_crash_takes_what_its_target_had(self):
        runs = self.enough + [run("b", 5 * M, quiet=1800, outcome="crash"), run("b", 2 * M, quiet=60)]
        self.assertEqual(fuzz_log.summary(runs, "abcd")[0][1], ("b", 2 * M, 2 * M, 60, 1))
        self.assertEqual(len(self.lacks(runs)), 2)

    def test_a_fast_target_does_not_stand_in_for_others(self):
        runs = [run("a", 500 * M, quiet=1800)] + self.enough[1:3] + [run("d", 9 * M, quiet=1800)]
        self.assertIn("99,000,000 of", self.lacks(runs)[0])
        self.assertEqual(fuzz_log.summary(runs, "abcd")[0][0][1:3], (500 * M, 30 * M))

    def test_least_of_each_target(self):
        runs = [run(t, 40 * M, quiet=1800) for t in "abc"] + [run("d", M - 1, quiet=1800)]
        self.assertIn("d: 999,999 of 1,000,000 executions", self.lacks(runs))

    def test_quiet_time_goes_on_only_with_the_same_edges(self):
        quiet = fuzz_log.longest_quiet
        self.assertEqual(quiet([run("a", quiet=100), run("a", quiet=200)]), 300)
        self.assertEqual(quiet([run("a", quiet=90), run("a", quiet=200, edges=11, new_edges=1), run("a", quiet=50, edges=11)]), 250)
        self.assertEqual(quiet([run("a", quiet=100), run("a", quiet=200, edges=12)]), 200)  # other code, other edges
        self.assertEqual(quiet([run("a", quiet=300, new_edges=1), run("a", quiet=20, edges=12, new_edges=2)]), 300)
        self.assertEqual(quiet([]), 0)

    def test_log_comes_back(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log.jsonl")
            self.assertEqual(fuzz_log.read(path), [])
            for entry in self.enough:
                fuzz_log.append(entry, path)
            self.assertEqual(fuzz_log.read(path), self.enough)


class Progress(unittest.TestCase):
    def test_reads_a_run(self):
        now = [0]
        progress = keep.Progress(lambda: now[0])
        for now[0], line in ((1, "INFO: Seed: 1"), (2, "#2\tpulse  cov: 5 ft: 6 corp: 1/1b"),
                             (4, "#3\tINITED cov: 8 ft: 9 corp: 1/1b"), (9, "#400\tREDUCE cov: 8 ft: 9 corp: 1/1b"),
                             (20, "#500\tNEW    cov: 10 ft: 12 corp: 2/9b"), (70, "#1024\tpulse  cov: 10 ft: 12 corp: 2/9b")):
            progress.read(line)
        self.assertEqual((progress.executions, progress.edges, progress.new_edges, progress.quiet()), (1024, 10, 2, 50))
        progress.read("stat::number_of_executed_units: 1100")
        self.assertEqual(progress.executions, 1100)


class Corpora(unittest.TestCase):
    def test_kept_inputs_are_small_and_named_by_target(self):
        for name in os.listdir(os.path.join(FUZZ, "corpus")):
            self.assertIn(name.removesuffix(".tar.xz"), fuzz_log.TARGETS)
            if name.endswith(".tar.xz"):
                self.assertLessEqual(os.path.getsize(os.path.join(FUZZ, "corpus", name)), fuzz_log.MAX_ARCHIVE_BYTES)

    def test_seeds_are_what_make_corpus_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            make_corpus.write_all(folder)
            for target in set(fuzz_log.TARGETS) - {"fuzz_ipc"}:  # those are written by a program of its own
                made, committed = os.path.join(folder, target), os.path.join(FUZZ, "corpus", target)
                self.assertEqual(sorted(os.listdir(made)), sorted(os.listdir(committed)))
                for name in os.listdir(made):
                    with open(os.path.join(made, name), "rb") as a, open(os.path.join(committed, name), "rb") as b:
                        self.assertEqual(a.read(), b.read(), f"{target}/{name}: run make_corpus.py")


if __name__ == "__main__":
    unittest.main()
