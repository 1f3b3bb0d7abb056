"""Package tandem-cuda on a box without a card, under a booted systemd: it installs, the service is asked to decode on a
device, says what is missing and serves from the processor; without the package it is closed to devices again. Run by
`tests/install/run --cuda NVCC` only."""
import os
import re
import shutil

import pytest
from test_deb import MODEL, READY, URL, booted, journal, wait_ready

FOLDER = os.environ.get("TANDEM_CUDA_DEBS", "")


@pytest.fixture(scope="module")
def box():
    if not FOLDER:
        pytest.fail("TANDEM_CUDA_DEBS must name the folder of both packages")
    debs = {name.split("_")[0]: os.path.join(FOLDER, name) for name in os.listdir(FOLDER) if name.endswith(".deb")}
    machine = booted(debs["tandem"], FOLDER)
    try:
        for name in ("tandem", "tandem-cuda"):
            shutil.copy(debs[name], machine.path(f"root/{name}.deb"))
        machine.run("apt-get", "install", "-y", "/root/tandem.deb")
        shutil.copy(os.path.join(os.environ["TANDEM_MODELS_DIR"], MODEL), machine.path("var/lib/tandem/models"))
        wait_ready(machine)
        yield machine
    finally:
        machine.off()


def test_depends_on_no_driver(box):
    depends = box.run("dpkg-deb", "-f", "/root/tandem-cuda.deb", "Depends").stdout
    assert re.match(r"tandem \(= ", depends) and "nvidia" not in depends and "cuda" not in depends
    files = box.run("dpkg-deb", "-c", "/root/tandem-cuda.deb").stdout
    assert "./usr/libexec/tandem/tandem-worker-cuda" in files and "tandem.service.d/cuda.conf" in files


def test_says_what_is_missing_and_serves(box):
    text = box.path("etc/tandem/tandem.toml").read_text()
    text = text.replace('#device = "none"', 'device = "0"').replace("#prefill = 0", "prefill = 1").replace("#decode = 0", "decode = 1")
    assert 'device = "0"' in text and "\nprefill = 1" in text and "\ndecode = 1" in text
    box.path("etc/tandem/tandem.toml").write_text(text)
    box.run("apt-get", "install", "-y", "/root/tandem-cuda.deb")  # restarts the service, with the new configuration
    wait_ready(box)
    status, body = box.python(READY, URL)
    assert status == 200 and '"degraded"' in body and "580" in body and "driver" in body, body
    assert "Paris" in box.run("tandem", "chat", "--temperature", "0", "What is the capital of France?").stdout
    assert "driver" in journal(box)


def test_units_are_sound_and_nearly_as_closed(box):
    units = ["/lib/systemd/system/tandem.service", "/usr/lib/systemd/system/tandem-cuda-devices.service"]
    said = box.run("systemd-analyze", "verify", "--man=no", *units, check=False)
    assert "tandem" not in said.stdout + said.stderr, said.stderr
    security = box.run("systemd-analyze", "security", "tandem.service", check=False).stdout
    assert float(re.search(r"exposure level for tandem.service: ([\d.]+)", security)[1]) <= 2.0
    assert box.show("tandem.service", "DevicePolicy") == "closed"
    allowed = box.show("tandem.service", "DeviceAllow")
    assert "char-nvidia rw" in allowed and "/dev/sd" not in allowed


def test_removed_the_box_is_closed_again(box):
    box.run("apt-get", "remove", "-y", "tandem-cuda")
    assert box.show("tandem.service", "PrivateDevices") == "yes"
    wait_ready(box)
    status, body = box.python(READY, URL)
    assert status == 200 and "tandem-worker-cuda" in body, body  # still asked for, and no longer there
