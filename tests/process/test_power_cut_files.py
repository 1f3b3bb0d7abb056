"""Files other than the request log when the power goes: configuration and keys, the store of models, quantized files, caches.
What the real programs write is recorded and cut at hundreds of points. A file is the old one or the new one, whole, and the
new one once the verb has ended; of a cache no more is asked than that the next start sees what is damaged and makes it again."""
import contextlib
import copy
import http.server
import os
import subprocess
import sys
import threading
import time

import pytest
from conftest import BIN, Appliance
from recorded_disk import Disk, cuts, digest, mark, read_record, watching, write_tree

HERE = os.path.dirname(os.path.abspath(__file__))
POINTS = int(os.environ.get("TANDEM_POWER_CUTS", "400"))
RERUNS = max(8, POINTS // 50)  # how many of the states that were left are gone on with by the real programs
TINY, OTHER = (os.path.join(HERE, "../golden/families", name) for name in ("llama.gguf", "qwen2.gguf"))
SHIPPED = os.path.join(HERE, "../../firmware_config/tandem.toml")


class Recorder:
    """Runs programs on the files of a folder; each end is a promise."""

    def __init__(self, shim, folder):
        self.folder, self.record = str(folder), str(folder) + ".record"
        self.environment, self.start = watching(shim, self.folder, self.record), Disk(folder)

    def run(self, *command, code=0):
        done = subprocess.run([str(word) for word in command], env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, (command, done.stderr)
        mark(self.record)

    def tandem(self, *arguments, code=0):
        self.run(os.path.join(BIN, "tandem"), *arguments, code=code)

    def ops(self):
        ops, disk = read_record(self.record), copy.deepcopy(self.start)
        for op in ops:
            disk.do(op)
        assert disk.tree() == Disk(self.folder).tree(), "something was written past the recorder"
        return ops

    def old_or_new(self, is_watched, points=POINTS):
        """Checks the files chosen at so many points; the different trees that were left."""
        ops, left = self.ops(), {}
        for point, tree, before, after in cuts(ops, self.start, points):
            for path in filter(is_watched, before | after):
                wanted = [promised.get(path, "none") for promised in (before, after)]
                said = f"{path} is neither old nor new, cut behind {ops[max(0, point - 3):point]}"
                assert tree.get(path, "none") in wanted, said
            left[digest(tree)] = tree
        assert len(left) > 5, "the cuts left hardly anything to choose from"
        print(f"{points} points of {len(ops)}, {len(left)} different states")
        return list(left.values())

    def gone_on_with(self, left, to):
        """Some of these states, each in a folder."""
        for number, tree in enumerate(left[::max(1, len(left) // RERUNS)]):
            folder = to / str(number)
            folder.mkdir(parents=True)
            write_tree(tree, self.folder, folder)
            yield folder


def tandem(*arguments):
    done = subprocess.run([os.path.join(BIN, "tandem"), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stderr


def test_configuration_and_keys(shim, tmp_path):
    root = tmp_path / "root"
    (root / "etc/tandem").mkdir(parents=True)
    (root / "etc/tandem/tandem.toml").write_text(open(SHIPPED).read())
    r = Recorder(shim, root)
    for verb in (["key", "app"], ["key", "second", "--option", "low"], ["listen", "0.0.0.0:8080"], ["key", "app"], ["listen", "127.0.0.1:9090"],
                 ["key", "second", "--remove"], ["key", "boss", "--admin"]):
        r.tandem("configure", *verb, "--root", root)
    left = r.old_or_new(lambda path: not path.endswith(".new"))
    for folder in r.gone_on_with(left, tmp_path / "left"):
        tandem("configure", "key", "again", "--root", folder)
        tandem("configure", "listen", "127.0.0.1:7070", "--root", folder)


@pytest.fixture
def web():
    """One file, with a mark of its state and ranges; cut_at: the next reply ends behind so many bytes."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            begin = int(wanted[len("bytes="):].split("-")[0]) if wanted and self.headers.get("If-Range") == '"1"' else 0
            if begin >= len(server.data):
                return self.send_error(416)
            self.send_response(206 if begin else 200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(server.data) - begin))
            self.end_headers()
            end, server.cut_at = server.cut_at, None
            self.wfile.write(server.data[begin:end])
            self.close_connection = True

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.data, server.cut_at = open(OTHER, "rb").read(), None
    server.url = f"http://127.0.0.1:{server.server_address[1]}/other.gguf"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_store_of_models(shim, web, tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    r = Recorder(shim, state)
    r.tandem("model", "add", TINY, "--state", state)
    for end in (len(web.data) // 3, 2 * len(web.data) // 3):
        web.cut_at = end
        r.tandem("model", "add", web.url, "--state", state, code=1)
    r.tandem("model", "add", web.url, "--state", state)
    r.tandem("model", "default", "llama.gguf", "--state", state)
    left = r.old_or_new(lambda path: "/." not in path)
    for folder in r.gone_on_with(left, tmp_path / "left"):
        tandem("model", "add", TINY, "--state", folder)
        tandem("model", "add", web.url, "--state", folder)
        for name, source in (("llama.gguf", TINY), ("other.gguf", OTHER)):
            assert (folder / "models" / name).read_bytes() == open(source, "rb").read(), (folder, name)
        assert os.readlink(folder / "models/default") == "other.gguf"


def test_quantized_file(shim, tmp_path):
    folder, text = tmp_path / "out", tmp_path / "text"
    folder.mkdir()
    text.write_text(300 * "Some words. ")
    q8 = ("quantize", "--model", TINY, "--to", "Q8_0", "--out")
    q4 = ("quantize", "--model", TINY, "--to", "Q4_0", "--calibration", text, "--calibration-tokens", "300", "--out")
    r, made = Recorder(shim, folder), []
    for command in ((*q8, folder / "q.gguf"), (*q4, folder / "q.gguf", "--force")):
        r.tandem(*command)
        made.append((folder / "q.gguf").read_bytes())
    left, n_continued = r.old_or_new(lambda path: path.endswith(".gguf")), 0
    for again in r.gone_on_with(left, tmp_path / "left"):
        (again / "q.gguf").unlink(missing_ok=True)
        n_continued += "continuing at" in tandem(*q4, again / "q.gguf")  # with what is left of the unfinished file
        assert (again / "q.gguf").read_bytes() == made[1]
        tandem(*q8, again / "q.gguf", "--force")
        assert (again / "q.gguf").read_bytes() == made[0]
    print(f"{n_continued} unfinished files were gone on with")
    assert n_continued > 0


PLANTED = {
    "no sync of the file": "f = open(p + '.new', 'w'); f.write(t); f.close(); os.rename(p + '.new', p); d = os.open(os.path.dirname(p), 0); os.fsync(d)",
    "no sync of the folder": "f = open(p + '.new', 'w'); f.write(t); f.flush(); os.fsync(f.fileno()); f.close(); os.rename(p + '.new', p)",
    "written in place": "f = open(p, 'w'); f.write(t); f.flush(); os.fsync(f.fileno()); d = os.open(os.path.dirname(p), 0); os.fsync(d)",
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_careless_writer_is_seen(shim, tmp_path, fault):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("a" * 2000)
    r = Recorder(shim, folder)
    for letter in "bc":
        r.run(sys.executable, "-c", f"import os; p, t = '{folder}/file', 2000 * '{letter}'; {PLANTED[fault]}")
    with pytest.raises(AssertionError, match="neither old nor new"):
        r.old_or_new(lambda path: path.endswith("/file"))


HIT, MISS, STORED = "weights mapped from the cache", "weights repacked", "repacked weights stored"


@contextlib.contextmanager
def life(state, environment=None, settings=(), says=()):
    """An appliance from start to orderly stop, behind whatever its log must say."""
    os.environ.update(environment or {})
    try:
        a = Appliance(state, model=TINY, settings=settings)
    finally:
        for name in environment or {}:
            os.environ.pop(name)
    try:
        end = time.time() + 30
        while not all(text in a.log() for text in says) or not a.status()["model"]["sha256"]:
            assert time.time() < end, a.log()
            time.sleep(0.02)
        yield a
    finally:
        assert a.stop() == 0


def answer(a):
    return a.client().completions.create(model=a.model_name, prompt="the fox and the", temperature=0, max_tokens=16).choices[0].text, a.status()["model"]["sha256"]


@pytest.fixture(scope="module")
def caches(shim, tmp_path_factory):
    """(the recorder, what the appliance answers)"""
    state = tmp_path_factory.mktemp("caches") / "state"
    (state / "cache").mkdir(parents=True)
    r = Recorder(shim, state / "cache")
    for says, settings in ((STORED, ()), (HIT, ()), (STORED, ("cpu.force_isa=avx2",)), (STORED, ())):
        with life(state, r.environment, settings, [says]) as a:
            wanted = answer(a)
    return r, wanted


def torn_caches(ops, start, end):
    """Trees with a file of that name that is none of those that were ever whole; all trees."""
    def contents(tree):
        return {content for path, content in tree.items() if path.endswith(end)}

    whole, disk, torn, left = set(), copy.deepcopy(start), {}, {}
    for op in ops:
        disk.do(op)
        if op[0] == "r":
            whole |= contents(disk.tree())
    for _, tree, _, _ in cuts(ops, start, POINTS):
        left[digest(tree)] = tree
        if contents(tree) - whole:
            torn[digest(tree)] = tree
    return list(torn.values()), list(left.values())


def check_starts(r, wanted, trees, to, says):
    for folder in r.gone_on_with(trees, to):
        state = to / ("state" + folder.name)
        state.mkdir(parents=True)
        os.rename(folder, state / "cache")
        with life(state, says=says) as a:
            assert answer(a) == wanted, a.log()


CACHES = (".weights", "/model_digests")  # the mark of an orderly stop may be torn: it is compared


def test_caches(caches, tmp_path):
    r, wanted = caches
    torn, left = torn_caches(r.ops(), r.start, CACHES)
    assert not torn, "a file has its name before its bytes"
    assert len(left) > 5
    check_starts(r, wanted, left, tmp_path / "left", ())


def test_caches_written_without_sync_are_seen_and_made_anew(caches, tmp_path):
    """Planted: no sync does anything."""
    r, wanted = caches
    careless = [op for op in r.ops() if op[0] != "s"]
    assert torn_caches(careless, r.start, CACHES[1])[0]
    torn = torn_caches(careless, r.start, CACHES[0])[0]
    assert torn
    check_starts(r, wanted, torn, tmp_path / "torn", (MISS,))
