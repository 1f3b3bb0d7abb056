"""The package's life under a booted systemd, in order: install, answer, reload, restart, kill, upgrade, reboot, remove,
purge. Each test begins where the one before ended; `fresh()` puts right what a failed one may have left."""
import json
import os
import re
import shutil
import subprocess
import time

import pytest
from machine import Machine

HERE = os.path.dirname(os.path.abspath(__file__))
DEB = os.environ.get("TANDEM_DEB", "")
SUITE = os.environ.get("TANDEM_DEB_SUITE", "bookworm")
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"

ASK = """
import json, sys, urllib.request
body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 32, "temperature": 0}
r = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
print(json.dumps(json.load(urllib.request.urlopen(r, timeout=60))["choices"][0]["message"]["content"]))
"""
# Streams so many tokens; prints the number of chunks, the finish reason, whether [DONE] came.
STREAM = """
import json, sys, urllib.request
body = {"prompt": "Once upon a time", "max_tokens": int(sys.argv[2]), "temperature": 0, "stream": True, "ignore_eos": True}
r = urllib.request.Request(sys.argv[1] + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
text, finish, done = "", None, False
for line in urllib.request.urlopen(r, timeout=120):
    if line.startswith(b"data: [DONE]"): done = True
    elif line.startswith(b"data: "):
        choice = (json.loads(line[6:]).get("choices") or [{}])[0]
        if not text: print("first", flush=True, file=sys.stderr)
        text += choice.get("text", "")
        finish = choice.get("finish_reason") or finish
print(json.dumps({"text": text, "finish": finish, "done": done}))
"""
# A new connection each time until stdin ends or the count is reached: what came of each.
KNOCK = """
import collections, json, sys, time, urllib.error, urllib.request
seen = collections.Counter()
end = time.time() + float(sys.argv[2])
while time.time() < end:
    try:
        seen[urllib.request.urlopen(sys.argv[1] + "/health", timeout=60).status] += 1
    except urllib.error.HTTPError as e:
        seen[e.code] += 1
    except Exception as e:
        seen[type(e).__name__ + ": " + str(e)] += 1
    time.sleep(0.01)
print(json.dumps(seen))
"""
READY = """
import json, sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1] + "/ready", timeout=30) as r: print(json.dumps([r.status, r.read().decode()]))
except urllib.error.HTTPError as e: print(json.dumps([e.code, e.read().decode()]))
except OSError as e: print(json.dumps([0, str(e)]))
"""
# The status of a call with this key.
MODELS = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/v1/models", None, {"Authorization": "Bearer " + sys.argv[2]}), timeout=30).status)
except urllib.error.HTTPError as e: print(e.code)
except OSError: print(0)
"""
URL = "http://127.0.0.1:8080"


def repacked(deb, folder, version, change=None):
    """The same package with another version; `change` may edit its unpacked tree."""
    tree = os.path.join(folder, "tree-" + version)
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    control = os.path.join(tree, "DEBIAN/control")
    text = re.sub(r"(?m)^Version: .*$", "Version: " + version, open(control).read())
    open(control, "w").write(text)
    if change:
        change(tree)
    out = os.path.join(folder, f"tandem_{version}.deb")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, out], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return out


def booted(deb, folder):
    """A machine with all that `deb` depends on; for packages that a test makes, `folder` is at hand as .debs."""
    made = subprocess.run([os.path.join(HERE, "run_root"), SUITE, deb], stdout=subprocess.PIPE, text=True, check=True)
    machine = Machine(made.stdout.split()[-1])
    try:
        machine.boot()
    except Exception:
        machine.off()
        raise
    machine.debs = str(folder)
    return machine


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    if not DEB:
        pytest.fail("TANDEM_DEB must name the package under test")
    machine = booted(DEB, tmp_path_factory.mktemp("debs"))
    shutil.copy(DEB, machine.path("root/tandem.deb"))
    yield machine
    machine.off()


def n_rows(box):
    return len(box.run("tandem", "log", "--limit", "10000").stdout.split("\n"))


def upgrade_under_a_stream(box, package, version):
    """While somebody reads a stream and others connect anew all the time: none of them notices."""
    shutil.copy(package, box.path("root/newer.deb"))
    rows = n_rows(box)
    knocking = box.start_python(KNOCK, URL, 10)
    stream = box.start_python(STREAM, URL, 400)
    assert stream.stderr.readline() == "first\n"
    box.run("apt-get", "install", "-y", "-o", "Dpkg::Options::=--force-confold", "/root/newer.deb")
    out, err = stream.communicate(timeout=60)
    assert '"finish": "length"' in out and '"done": true' in out, out + err
    out, err = knocking.communicate(timeout=60)
    assert set(json.loads(out)) == {"200"}, out
    assert box.run("dpkg-query", "-W", "-f=${Version}", "tandem").stdout == version
    wait_ready(box)
    assert "Paris" in box.python(ASK, URL)
    assert n_rows(box) > rows


def drop_in(box, name, text):
    folder = box.path("etc/systemd/system/tandem.service.d")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.conf").write_text("[Service]\n" + text)
    box.run("systemctl", "daemon-reload")


def no_drop_ins(box):
    shutil.rmtree(box.path("etc/systemd/system/tandem.service.d"), ignore_errors=True)
    box.run("systemctl", "daemon-reload")


def fresh(box):
    no_drop_ins(box)
    box.run("systemctl", "reset-failed", "tandem.service", "tandem.socket", check=False)
    box.run("systemctl", "start", "tandem.socket", "tandem.service")


def wait_ready(box, url=URL):
    box.wait("the model is ready", lambda: box.python(READY, url)[0] == 200, 60)


def journal(box):
    return box.run("journalctl", "-u", "tandem.service", "-o", "cat", "--no-pager").stdout


def test_install_without_a_model(box):
    box.installed_from = time.time()
    box.run("apt-get", "install", "-y", "/root/tandem.deb")
    assert box.show("tandem.service", "ActiveState") == "active"
    assert box.show("tandem.socket", "ActiveState") == "active"
    box.wait("the status line", lambda: "no model" in box.show("tandem.service", "StatusText"))
    status, body = box.python(READY, URL)
    assert status == 503 and "no model" in body and "/var/lib/tandem/models" in body
    for unit in ("tandem.service", "tandem.socket"):
        assert box.run("systemctl", "is-enabled", unit).stdout.strip() == "enabled"
    assert box.run("stat", "-c", "%U:%G %a", "/var/lib/tandem", "/var/lib/tandem/models", "/var/cache/tandem").stdout.split("\n")[:3] == [
        "tandem:tandem 750", "root:root 755", "tandem:tandem 750"]
    assert box.run("ps", "-o", "user=", "-C", "tandemd").stdout.strip() == "tandem"


def test_one_command_gives_an_answer(box):
    box.run("tandem", "model", "add", f"/models/{MODEL}")
    wait_ready(box)
    assert "Paris" in box.run("tandem", "chat", "--temperature", "0", "What is the capital of France?").stdout
    print(f"from the package to an answer: {time.time() - box.installed_from:.1f} s")


def test_locked_in(box):
    assert float(re.search(r"exposure level for tandem.service: ([\d.]+)", box.run("systemd-analyze", "security", "tandem.service", check=False).stdout)[1]) <= 1.5
    said = box.run("systemd-analyze", "verify", "--man=no", "/lib/systemd/system/tandem.service", "/lib/systemd/system/tandem.socket", check=False)
    assert "tandem" not in said.stdout + said.stderr, said.stderr
    worker = [l for l in journal(box).split("\n") if "landlock=" in l][-1]
    assert "seccomp=on" in worker and 'landlock="abi' in worker, worker
    pids = {p: box.run("pgrep", "-x", p).stdout.split() for p in ("tandemd", "tandem-worker")}
    score = {p: [int(box.run("cat", f"/proc/{pid}/oom_score_adj").stdout) for pid in found] for p, found in pids.items()}
    # A container's systemd may not lower the score (it stays 0); a worker raises its own anywhere.
    assert box.show("tandem.service", "OOMScoreAdjust") == "-500" and box.show("tandem.service", "OOMPolicy") == "continue"
    assert score["tandemd"][0] <= 0 and score["tandem-worker"] and all(s >= 500 for s in score["tandem-worker"]), score


def test_reload_without_dropping_a_stream(box):
    stream = box.start_python(STREAM, URL, 200)
    assert stream.stderr.readline() == "first\n"
    pid = box.show("tandem.service", "MainPID")
    config = box.path("etc/tandem/tandem.toml")
    text = config.read_text()

    def reload(config_text, said, times):
        # ExecReload sends a signal: systemctl may return before the file is read.
        config.write_text(config_text)
        box.run("systemctl", "reload", "tandem.service")
        box.wait(f"'{said}' in the journal", lambda: len([l for l in journal(box).split("\n") if l.startswith(said)]) == times)

    reload(text.replace('#level = "info"', 'level = "debug"'), "reloaded", 1)
    reload(text.replace('#level = "info"', 'level = "loud"'), "reload refused", 1)  # nothing changes
    reload(text, "reloaded", 2)
    out, err = stream.communicate(timeout=120)
    assert '"finish": "length"' in out and '"done": true' in out, out + err
    assert box.show("tandem.service", "MainPID") == pid
    assert "loud" in journal(box)


def test_keys_are_rotated_and_the_port_is_opened_by_the_verb(box):
    def comes(key, status):
        box.wait(f"{status} with the key {key}", lambda: box.python(MODELS, URL, key) == status)

    config = box.path("etc/tandem/tandem.toml")
    shipped = config.read_text()
    refused = box.run("tandem", "configure", "listen", "0.0.0.0:8080", check=False)
    assert refused.returncode == 1 and "tandem configure key" in refused.stderr
    pid = box.show("tandem.service", "MainPID")
    stream = box.start_python(STREAM, URL, 400)
    assert stream.stderr.readline() == "first\n"
    old = box.run("tandem", "configure", "key", "app").stdout.strip()
    comes("none", 401)
    comes(old, 200)
    assert box.run("stat", "-c", "%U:%G %a", "/etc/tandem/keys").stdout.strip() == "root:tandem 640"
    new = box.run("tandem", "configure", "key", "app").stdout.strip()
    comes(new, 200)
    comes(old, 401)
    out, err = stream.communicate(timeout=120)
    assert '"finish": "length"' in out and '"done": true' in out, out + err  # begun without a key
    assert box.show("tandem.service", "MainPID") == pid
    try:
        box.run("tandem", "configure", "listen", "0.0.0.0:8080")
        assert "0.0.0.0:8080" in box.show("tandem.socket", "Listen")
        comes(new, 200)
        said = box.run("systemctl", "status", "tandem.service", check=False)
        assert said.returncode == 0 and box.show("tandem.service", "NRestarts") == "0"
    finally:
        box.run("tandem", "configure", "listen", "127.0.0.1:8080")
        box.run("tandem", "configure", "key", "app", "--remove")
        config.write_text(shipped)
    assert "127.0.0.1:8080" in box.show("tandem.socket", "Listen")
    comes("none", 200)


def test_a_restart_refuses_no_connection(box):
    wait_ready(box)
    knocking = box.start_python(KNOCK, URL, 8)
    stream = box.start_python(STREAM, URL, 300)
    assert stream.stderr.readline() == "first\n"
    before = box.show("tandem.service", "MainPID")
    box.run("systemctl", "restart", "tandem.service")
    out, err = stream.communicate(timeout=60)
    assert '"finish": "length"' in out and '"done": true' in out, out + err  # drained
    assert box.show("tandem.service", "MainPID") != before
    out, err = knocking.communicate(timeout=60)
    seen = __import__("json").loads(out)
    assert set(seen) == {"200"} and seen["200"] > 20, (seen, err)


def test_a_stop_waits_as_long_as_the_drain_may_take(box):
    config = box.path("etc/tandem/tandem.toml")
    text = config.read_text()
    assert "#drain_timeout_ms = 30000" in text
    config.write_text(text.replace("#drain_timeout_ms = 30000", "drain_timeout_ms = 100000"))
    drop_in(box, "hasty", "TimeoutStopSec=2\n")  # without a word of the program the kill comes after this
    try:
        box.run("systemctl", "restart", "tandem.service")
        wait_ready(box)
        stream = box.start_python(STREAM, URL, 1500)
        assert stream.stderr.readline() == "first\n"
        begin = time.time()
        box.run("systemctl", "stop", "tandem.socket", "tandem.service")
        out, err = stream.communicate(timeout=120)
        assert '"finish": "length"' in out and '"done": true' in out, out + err
        assert time.time() - begin > 3, "the stream was too short to show anything"
        assert box.show("tandem.service", "Result") == "success"
    finally:
        config.write_text(text)
        fresh(box)
    wait_ready(box)


def test_watchdog_ends_a_stopped_supervisor(box):
    drop_in(box, "quick", "WatchdogSec=1\nTimeoutAbortSec=1\n")
    box.run("systemctl", "restart", "tandem.service")
    wait_ready(box)
    pid = box.show("tandem.service", "MainPID")
    time.sleep(2.5)  # fed by the loop: nothing happens
    assert box.show("tandem.service", "MainPID") == pid
    box.run("kill", "-STOP", pid)
    box.wait("a new supervisor", lambda: box.show("tandem.service", "MainPID") not in ("0", pid))
    wait_ready(box)
    assert "Watchdog timeout" in box.run("journalctl", "-u", "tandem.service", "--no-pager").stdout
    assert "Paris" in box.python(ASK, URL)


def test_killed_supervisor_comes_back_without_orphans(box):
    fresh(box)
    wait_ready(box)
    pid = box.show("tandem.service", "MainPID")
    old = set(box.run("pgrep", "-x", "tandem-worker").stdout.split())
    box.run("kill", "-KILL", pid)
    box.wait("a new supervisor", lambda: box.show("tandem.service", "MainPID") not in ("0", pid))
    wait_ready(box)
    assert not old & set(box.run("pgrep", "-x", "tandem-worker").stdout.split())


def test_listen_other_than_the_socket(box):
    config = box.path("etc/tandem/tandem.toml")
    text = config.read_text()
    config.write_text(text.replace('#listen = "127.0.0.1:8080"', 'listen = "127.0.0.1:9090"'))
    try:
        box.run("systemctl", "restart", "tandem.service", check=False)
        box.wait("failed", lambda: box.show("tandem.service", "ActiveState") == "failed")
        assert box.show("tandem.service", "ExecMainStatus") == "78" and box.show("tandem.service", "NRestarts") == "0"
        said = box.run("systemctl", "status", "tandem.service", check=False).stdout
        assert "127.0.0.1:9090" in said and "127.0.0.1:8080" in said and "tandem configure listen" in said, said
    finally:
        config.write_text(text)
        fresh(box)
    wait_ready(box)


def test_crash_loop_ends_failed_with_its_cause(box):
    drop_in(box, "broken", "Environment=STATE_DIRECTORY=/proc/nowhere\nRestartSec=100ms\n")
    box.run("systemctl", "restart", "tandem.service", check=False)
    box.wait("failed", lambda: box.show("tandem.service", "ActiveState") == "failed")
    time.sleep(1)
    assert box.show("tandem.service", "ActiveState") == "failed" and int(box.show("tandem.service", "NRestarts")) <= 5
    said = box.run("systemctl", "status", "-n5", "tandem.service", check=False).stdout
    assert "/proc/nowhere" in said, said
    fresh(box)
    wait_ready(box)


def test_upgrade_while_a_stream_runs(box):
    def change(tree):
        for name in ("tandem.toml", "profile.toml"):
            with open(os.path.join(tree, "etc/tandem", name), "a") as f:
                f.write("# of the newer version\n")
    newer = repacked(DEB, box.debs, "0.1.0+next", change)
    config = box.path("etc/tandem/tandem.toml")
    config.write_text(config.read_text().replace("#max_queue = 192", "max_queue = 99"))
    upgrade_under_a_stream(box, newer, "0.1.0+next")
    assert "max_queue = 99" in config.read_text() and "newer version" not in config.read_text()
    assert "newer version" in box.path("etc/tandem/profile.toml").read_text()


def test_downgrade_is_refused_if_the_database_is_newer(box):
    database = box.path("var/lib/tandem/requests.db")
    with open(database, "r+b") as f:  # user_version, big-endian, of a layout to come
        f.seek(60)
        old = f.read(4)
        f.seek(60)
        f.write((99).to_bytes(4, "big"))
    try:
        refused = box.run("dpkg", "-i", "/root/tandem.deb", check=False)
        assert refused.returncode != 0 and "layout 99" in refused.stderr, refused.stderr
        assert box.run("dpkg-query", "-W", "-f=${Version} ${db:Status-Status}", "tandem").stdout == "0.1.0+next installed"
    finally:
        with open(database, "r+b") as f:
            f.seek(60)
            f.write(old)
    box.run("dpkg", "-i", "--force-confold", "/root/tandem.deb")  # the layout is the same: allowed
    wait_ready(box)
    assert "Paris" in box.python(ASK, URL)


def test_reboot_comes_back(box):
    box.run("systemctl", "reboot", check=False)
    assert box.wait_off() == 133
    box.boot()
    wait_ready(box)
    assert "Paris" in box.python(ASK, URL)


def test_remove_keeps_data_and_purge_takes_it(box):
    box.run("apt-get", "remove", "-y", "tandem")
    assert box.path("var/lib/tandem/requests.db").exists() and box.path("etc/tandem/tandem.toml").exists()
    assert box.python(READY, URL)[0] == 0 and not box.run("pgrep", "-x", "tandemd", check=False).stdout
    box.run("apt-get", "install", "-y", "/root/tandem.deb")
    wait_ready(box)
    assert "max_queue = 99" in box.path("etc/tandem/tandem.toml").read_text()
    assert "Paris" in box.python(ASK, URL)
    box.run("apt-get", "purge", "-y", "tandem")
    for gone in ("var/lib/tandem", "var/cache/tandem", "etc/tandem", "run/tandem", "etc/systemd/system/tandem.socket.d"):
        assert not box.path(gone).exists(), gone
    assert box.run("getent", "passwd", "tandem", check=False).returncode != 0
    assert box.run("systemctl", "list-unit-files", "tandem*", "--no-legend", check=False).stdout.strip() == ""
    box.run("apt-get", "install", "-y", "/root/tandem.deb")
    assert box.python(READY, URL)[0] == 503
