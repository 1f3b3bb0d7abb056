"""HTTPS: streams, certificates replaced by SIGHUP without dropping one, plain HTTP and damaged handshakes on the port."""
import json
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.request

import pytest
from conftest import SMOLLM2, Appliance


def make_certificate(folder, name):
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", certificate,
                    "-days", "2", "-subj", "/CN=" + name, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    return certificate, key


class SecureAppliance(Appliance):
    def wait_ready(self, timeout=60):
        pass


@pytest.fixture
def secure(tmp_path):
    certificate, key = make_certificate(tmp_path, "first")
    a = SecureAppliance(tmp_path / "state", settings=["server.tls_certificate_file=" + certificate, "server.tls_key_file=" + key,
                                                      "server.header_timeout_ms=1000"])
    a.folder = tmp_path
    yield a
    assert a.stop() == 0, a.log()[-3000:]


def context(a):
    return ssl.create_default_context(cafile=str(a.folder / "certificate.pem"))


def get(a, path):
    with urllib.request.urlopen(f"https://{a.address}{path}", timeout=30, context=context(a)) as r:
        return r.status, r.read().decode()


def served_name(a):
    host, port = a.address.split(":")
    with socket.create_connection((host, int(port)), 10) as s, context(a).wrap_socket(s, server_hostname="localhost") as t:
        return dict(x[0] for x in t.getpeercert()["subject"])["commonName"]


def wait_model(a):
    end = time.time() + 60
    while time.time() < end:
        try:
            return get(a, "/ready")
        except OSError:
            time.sleep(0.1)
    raise AssertionError(a.log())


def test_streams_and_certificates_replaced_meanwhile(secure):
    a = secure
    wait_model(a)
    body = json.dumps({"prompt": "Once", "max_tokens": 300, "temperature": 0, "stream": True, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"https://{a.address}/v1/completions", body, {"Content-Type": "application/json"})
    old = context(a)
    with urllib.request.urlopen(request, timeout=60, context=old) as stream:
        assert b"data: " in stream.readline()
        assert served_name(a) == "first"
        make_certificate(a.folder, "second")
        a.process.send_signal(signal.SIGHUP)
        end = time.time() + 10
        while True:
            try:
                name = served_name(a)
            except ssl.SSLError:  # the old one, which the new authority did not sign
                name = "first"
            if name == "second" or time.time() > end:
                break
            time.sleep(0.05)
        assert name == "second"
        assert b"data: [DONE]" in stream.read()
    # A key that does not fit: refused, the second certificate stays.
    (a.folder / "key.pem").write_text("no key\n")
    a.process.send_signal(signal.SIGHUP)
    end = time.time() + 10
    while "not reloaded" not in a.log() and time.time() < end:
        time.sleep(0.05)
    assert "server.tls_key_file" in a.log()
    assert served_name(a) == "second" and get(a, "/health")[0] == 200


def test_a_large_body_and_reply(secure):
    a = secure
    wait_model(a)
    text = "word " * 200_000  # 1 MB up, most of it down again
    request = urllib.request.Request(f"https://{a.address}/tokenize", json.dumps({"content": text}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60, context=context(a)) as r:
        assert len(json.load(r)["tokens"]) >= 200_000


def test_what_is_no_tls_is_closed_and_bounded(secure):
    host, port = secure.address.split(":")
    for bytes_sent in (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", os.urandom(4000), b"\x16\x03\x01\x02\x00" + os.urandom(100)):
        with socket.create_connection((host, int(port)), 10) as s:
            s.sendall(bytes_sent)
            s.settimeout(10)
            try:
                while s.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    silent = [socket.create_connection((host, int(port)), 10) for _ in range(50)]  # never say hello
    begin = time.time()
    assert get(secure, "/health")[0] == 200 and time.time() - begin < 2
    for s in silent:
        s.settimeout(10)
        try:
            assert s.recv(1) == b""  # closed after server.header_timeout_ms
        except ConnectionResetError:
            pass
        s.close()


@pytest.mark.parametrize("settings, words", [
    (["server.tls_certificate_file=/nowhere.pem", "server.tls_key_file=/nowhere.key"], "server.tls_certificate_file /nowhere.pem"),
    (["server.tls_certificate_file=/nowhere.pem"], "must both be set")])
def test_a_faulty_setting_is_a_configuration_error(tmp_path, settings, words):
    from conftest import BIN
    command = [os.path.join(BIN, "tandem"), "serve", "--model", SMOLLM2, "--port", "0", "--state", str(tmp_path)]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 78 and words in done.stderr, done.stderr
