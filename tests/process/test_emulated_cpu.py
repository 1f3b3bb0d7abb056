"""tandem-worker on processors this machine is not: under qemu-user, an instruction that the processor lacks ends a
program by SIGILL, so that AVX-512 code outside its column is seen. (qemu-user answers ENOSYS to Landlock and EINVAL
to seccomp filters; the worker then goes on without them as on an old kernel, and no switch is needed.)"""
import os
import platform
import re
import shutil
import signal
import subprocess

import pytest
from conftest import BIN

QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
TINY = os.path.join(os.path.dirname(__file__), "../golden/families/llama.gguf")
WORKER = os.path.join(BIN, "tandem-worker")

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates x86-64 processors on x86-64")


def emulated(cpu, program, *args, **options):
    assert QEMU, "qemu-x86_64 is not installed: packaging/install_deps test"
    return subprocess.run([QEMU, "-cpu", cpu, program, *args], capture_output=True, text=True, timeout=180, **options)


def tool(cpu, name, *args, text=None):
    """Standard output of a tool of the worker, on the tiny model."""
    with open(TINY, "rb") as model, open(text or os.devnull, "rb") as text_file:
        extra = ["--text-fd", str(text_file.fileno())] if text else []
        done = emulated(cpu, WORKER, "--tool", name, "--model-fds", str(model.fileno()), *extra, *args,
                        pass_fds=[model.fileno(), text_file.fileno()])
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def perplexity(out):
    return float(re.search(r"perplexity ([0-9.]+) ", out).group(1))


@pytest.mark.parametrize("cpu, column", [("Haswell", "avx2"), ("Nehalem", "ref")])
def test_worker_on_an_older_processor(cpu, column, tmp_path):
    out = tool(cpu, "doctor", "--threads", "2")
    assert re.search(rf"kernels +{column}\n", out), out
    assert "fail" not in out and "avx512" not in out, out
    # Every kernel it would serve with ran, and the same text scores as on this machine's best kernels.
    assert f"{column} matmul Q4_K" in out and f"{column} attention f16" in out
    text = tmp_path / "text"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 3)
    here = subprocess.run([os.path.join(BIN, "tandem"), "eval", "--model", TINY, "--text", text], capture_output=True,
                          text=True, timeout=60)
    assert here.returncode == 0, here.stderr
    there = tool(cpu, "eval", "--threads", "2", text=text)
    assert perplexity(there) == pytest.approx(perplexity(here.stdout), rel=1e-2)


def test_a_column_the_processor_lacks_is_refused_not_run():
    with open(TINY, "rb") as model:
        done = emulated("Haswell", WORKER, "--tool", "eval", "--model-fds", str(model.fileno()), "--text-fd", "0",
                        "--force-isa", "avx512vnni", stdin=subprocess.DEVNULL, pass_fds=[model.fileno()])
    assert done.returncode == 78 and "lacks avx512f" in done.stderr, done.stderr


def test_planted_avx512_instruction_is_seen(tmp_path):
    source = tmp_path / "leak.c"
    source.write_text('int main(void) { __asm__ volatile("vpaddd %zmm0, %zmm1, %zmm2"); return 0; }\n')
    subprocess.run(["cc", "-o", tmp_path / "leak", source], check=True)
    assert emulated("Haswell", str(tmp_path / "leak")).returncode == -signal.SIGILL
