"""PSS of a process and its children, now and at most."""
import threading

import psutil


def pss_of(pid):
    """Bytes; 0 for a process that is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def tree_pss(pid):
    try:
        pids = [pid] + [p.pid for p in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(pss_of(p) for p in pids)


class PeakPss:
    """with PeakPss(pid) as peak: ...; peak.bytes"""

    def __init__(self, pid, every_s=0.03):
        self.pid, self.every_s, self.bytes = pid, every_s, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self._stop.is_set():
            self.bytes = max(self.bytes, tree_pss(self.pid))
            self._stop.wait(self.every_s)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self.bytes = max(self.bytes, tree_pss(self.pid))
