"""What can be said of the package's sources without building it."""
import os
import re

import pytest

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def read(path):
    with open(os.path.join(TOP, path)) as f:
        return f.read()


# In build_deps for developers, or part of every Debian build already.
NOT_IN_CONTROL = {"build-essential", "ca-certificates", "ccache", "python3-pip"}


def test_build_dependencies_are_those_of_the_one_list():
    listed = {line.split()[1] for line in read("packaging/build_deps").split("\n") if line.startswith("build ")}
    field = re.search(r"Build-Depends:((?:.|\n )*?)\n\S", read("packaging/debian/control"))[1]
    control = {re.sub(r"[ (:].*", "", d.strip()) for d in field.split(",")}
    assert control - {"debhelper-compat", "dh-sequence-installsysusers"} == listed - NOT_IN_CONTROL


@pytest.mark.parametrize("name", ["preinst", "postinst", "prerm", "postrm"])
def test_maintainer_scripts_are_short(name):
    path = os.path.join(TOP, "packaging/debian/tandem." + name)
    if os.path.exists(path):
        assert len(read(path).split("\n")) <= 30


def test_versions_agree():
    version = re.search(r"project\(tandem VERSION (\S+)", read("CMakeLists.txt"))[1]
    assert read("packaging/debian/changelog").startswith(f"tandem ({version})")


def test_man_page_names_every_verb():
    verbs = set(re.findall(r'app->add_subcommand\(\s*"([a-z]+)"', read("src/ctl/main.cc")))
    described = set(re.findall(r"\.TP\n\.B ([a-z]+)\n", read("packaging/man/tandem.1")))
    assert verbs == described


def test_every_profile_is_in_the_package_and_the_closed_one_is_the_default():
    rules = read("packaging/debian/rules")
    assert "install -m 644 firmware_config/profiles/*.toml $(DEST)/usr/share/tandem/profiles/" in rules
    assert "firmware_config/profiles/cpu-only.toml $(DEST)/etc/tandem/profile.toml" in rules
    names = sorted(os.listdir(os.path.join(TOP, "firmware_config/profiles")))
    assert names == ["cpu-only.toml", "jetson-orin.toml", "raspberry-pi-5.toml", "x86-gpu-4gb.toml", "x86-gpu-6gb.toml", "x86-gpu-8gb.toml"]
