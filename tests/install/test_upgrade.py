"""From a package as an earlier commit built it to this one, under a booted systemd: what people had stays, streams go on."""
import contextlib
import os
import shutil
import sqlite3

import pytest
from test_deb import ASK, DEB, MODEL, URL, booted, journal, n_rows, repacked, upgrade_under_a_stream, wait_ready

EARLIER = os.environ.get("TANDEM_DEB_EARLIER", "")
NEWER = "0.1.0+next"  # both builds may say the same version


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    if not (DEB and EARLIER):
        pytest.fail("TANDEM_DEB_EARLIER and TANDEM_DEB must name two packages")
    machine = booted(DEB, tmp_path_factory.mktemp("debs"))
    shutil.copy(EARLIER, machine.path("root/earlier.deb"))
    yield machine
    machine.off()


def test_the_earlier_build_is_used(box):
    box.run("apt-get", "install", "-y", "/root/earlier.deb")
    box.run("tandem", "model", "add", f"/models/{MODEL}")
    wait_ready(box)
    assert "Paris" in box.python(ASK, URL)
    config = box.path("etc/tandem/tandem.toml")
    config.write_text(config.read_text().replace("#max_queue = 192", "max_queue = 99"))
    assert "max_queue = 99" in config.read_text()
    box.wait("a row of the log", lambda: n_rows(box) >= 2)
    box.rows = n_rows(box)


def test_upgrade_to_this_build(box):
    upgrade_under_a_stream(box, repacked(DEB, box.debs, NEWER), NEWER)
    assert "max_queue = 99" in box.path("etc/tandem/tandem.toml").read_text()
    assert n_rows(box) > box.rows
    said = journal(box)
    assert "damaged" not in said, said
    with contextlib.closing(sqlite3.connect(f"file:{box.path('var/lib/tandem/requests.db')}?mode=ro", uri=True)) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def test_back_to_the_earlier_build(box):
    """Allowed where the layout of the database is the same, else refused with the reason; what is there is served either way."""
    back = box.run("dpkg", "-i", "--force-confold", "--force-downgrade", "/root/earlier.deb", check=False)
    assert back.returncode == 0 or "layout" in back.stderr, back.stderr
    wait_ready(box)
    assert "Paris" in box.python(ASK, URL)
