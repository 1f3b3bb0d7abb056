"""A Debian root booted by systemd-nspawn: its own systemd, /dev and network, with the real models mounted read-only."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

MODELS = os.environ.get("TANDEM_MODELS_DIR", os.path.expanduser("~/.cache/tandem/models"))
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb",
               "DEBIAN_FRONTEND": "noninteractive", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "cat"}


class Machine:
    """boot(), run(), off(). `root` is its file tree, seen from here."""

    def __init__(self, tar):
        self.root = tempfile.mkdtemp(prefix="tandem-machine.")
        subprocess.run(["tar", "-xf", tar, "-C", self.root], check=True)
        self.path("etc/machine-id").unlink(missing_ok=True)
        self.nspawn = self.leader = None
        self.console = os.path.join(self.root, "console.log")

    def path(self, inside):
        import pathlib
        return pathlib.Path(self.root) / inside.lstrip("/")

    def boot(self, timeout=60):
        name = "tandem-" + os.urandom(4).hex()  # a host name: the folder's own may have an underscore
        self.nspawn = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "systemd-nspawn", "-q", "-D", self.root, "--boot", "--register=no", "--keep-unit", "--machine=" + name,
             "--console=pipe", "--private-network", "--bind-ro=" + MODELS + ":/models",
             # systemd-nspawn 252 knows Landlock but does not allow it; the workers inside want it.
             "--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self"],
            stdin=subprocess.DEVNULL, stdout=open(self.console, "ab"), stderr=subprocess.STDOUT)
        end = time.time() + timeout
        while time.time() < end:
            if self.nspawn.poll() is not None:
                raise Unbootable(self.said())
            self.leader = self._find_leader()
            if self.leader and self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"):
                return self
            time.sleep(0.2)
        raise Unbootable(self.said())

    def said(self):
        with open(self.console, errors="replace") as f:
            return f.read()[-2000:]

    def _find_leader(self):
        children = f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children"
        if not os.path.exists(children):
            found = subprocess.run(["pgrep", "-P", str(self.nspawn.pid)], capture_output=True, text=True).stdout.split()
        else:
            found = open(children).read().split()
        return next((pid for pid in found if comm(pid) == "systemd"), None)

    def command(self, *command):
        return ["nsenter", "-t", self.leader, "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--", "env", "-i",
                *[f"{k}={v}" for k, v in ENVIRONMENT.items()], *command]

    def run(self, *command, check=True, timeout=120):
        done = subprocess.run(self.command(*command), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        assert not check or done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *command):
        return subprocess.Popen(self.command(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)

    def python(self, script, *arguments, timeout=120):
        """Runs a program of this machine's Python in the network of the booted one; it prints one JSON value."""
        done = subprocess.run(["nsenter", "-t", self.leader, "-n", "--", sys.executable, "-c", script, *map(str, arguments)],
                              capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start_python(self, script, *arguments):
        return subprocess.Popen(["nsenter", "-t", self.leader, "-n", "--", sys.executable, "-u", "-c", script, *map(str, arguments)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def show(self, unit, name):
        return self.run("systemctl", "show", unit, "-p", name, "--value").stdout.strip()

    def wait(self, what, condition, timeout=30):
        end = time.time() + timeout
        while not condition():
            assert time.time() < end, f"not within {timeout} s: {what}\n{self.run('systemctl', 'status', '-n40', 'tandem.service', check=False).stdout}"
            time.sleep(0.1)

    def wait_off(self, timeout=60):
        """Exit code of the machine: 133 after a reboot."""
        code = self.nspawn.wait(timeout)
        self.nspawn = self.leader = None
        return code

    def off(self):
        if self.nspawn and self.nspawn.poll() is None:
            if self.leader:
                self.run("systemctl", "--force", "poweroff", check=False)
            else:
                self.nspawn.kill()
            try:
                self.nspawn.wait(30)
            except subprocess.TimeoutExpired:
                self.nspawn.kill()
                self.nspawn.wait()
        shutil.rmtree(self.root, ignore_errors=True)


class Unbootable(Exception):
    pass


def comm(pid):
    try:
        return open(f"/proc/{pid}/comm").read().strip()
    except OSError:
        return ""


def main():
    """machine.py TAR: whether a root boots here. Exit 3 with what the console said if it does not."""
    machine = Machine(sys.argv[1])
    try:
        machine.boot(30)
        print("boots:", machine.run("systemctl", "is-system-running", check=False).stdout.strip())
    except Unbootable as e:
        print(f"systemd-nspawn does not boot here: {e}")
        sys.exit(3)
    finally:
        machine.off()


if __name__ == "__main__":
    main()
