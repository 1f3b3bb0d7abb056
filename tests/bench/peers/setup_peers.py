"""Fetches the peers from PyPI and builds them natively: llama.cpp and ik_llama.cpp out of the sdists that carry their sources,
OpenVINO GenAI as the wheel. Everything lands in one folder and is done once."""
import glob
import os
import subprocess
import sys
import tarfile

LLAMA_CPP = ("llama-cpp-python", "0.3.36", "llama_cpp_python")
IK_LLAMA_CPP = ("ik-llama-cpp-python", "0.1.5", "ik_llama_cpp_python")
OPENVINO = ("openvino-genai", "2026.4.1.0")
PYTHON_NEEDS = ["gguf==0.19.0", "numpy==2.4.6"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def venv(work, name, packages):
    """The interpreter of a venv in `work` that has `packages`."""
    folder = os.path.join(work, name)
    python = os.path.join(folder, "bin/python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = os.path.join(folder, "installed.txt")
    if not os.path.exists(done) or open(done).read() != "\n".join(packages):
        subprocess.run([python, "-m", "pip", "-q", "install", *packages], check=True)
        with open(done, "w") as f:
            f.write("\n".join(packages))
    return python


def sources(work, package):
    """Folder with the C++ sources of one of the two llamas."""
    name, version, stem = package
    pattern = os.path.join(work, f"{stem}-{version}", "vendor", "*llama.cpp")
    if not glob.glob(pattern):
        say(f"fetching the sources of {name} {version}")
        python = venv(work, "build-venv", ["scikit-build-core"])
        subprocess.run([python, "-m", "pip", "-q", "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", work,
                        f"{name}=={version}"], check=True)
        with tarfile.open(os.path.join(work, f"{stem}-{version}.tar.gz")) as archive:
            archive.extractall(work, filter="data")
    return glob.glob(pattern)[0]


BUILD_INFO = """set(BUILD_NUMBER 0)
set(BUILD_COMMIT "sdist")
set(BUILD_COMPILER "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
set(BUILD_TARGET "native")
configure_file(common/build-info.cpp.in common/build-info.cpp)
"""


def add_build_info(source):
    """ik_llama.cpp's sdist leaves out the script that fills its build-info.cpp; this does the same."""
    script = os.path.join(source, "common/cmake/build-info-gen-cpp.cmake")
    if os.path.exists(os.path.join(source, "common/build-info.cpp.in")) and not os.path.exists(script):
        os.makedirs(os.path.dirname(script), exist_ok=True)
        with open(script, "w") as f:
            f.write(BUILD_INFO)


def build_llama(work, package):
    """Folder of llama-bench and llama-server, built for this very CPU."""
    source = sources(work, package)
    build = os.path.join(source, "build")
    binaries = os.path.join(build, "bin")
    if not all(os.path.exists(os.path.join(binaries, b)) for b in ("llama-bench", "llama-server")):
        say(f"building {package[0]} (ten minutes and more on two cores)")
        add_build_info(source)
        examples = package == IK_LLAMA_CPP  # its server is one of the examples
        subprocess.run(["cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
                        "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", f"-DLLAMA_BUILD_EXAMPLES={'ON' if examples else 'OFF'}"],
                       check=True, stdout=sys.stderr)
        subprocess.run(["cmake", "--build", build, "--target", "llama-bench", "llama-server"], check=True, stdout=sys.stderr)
    return binaries


def openvino_python(work):
    name, version = OPENVINO
    return venv(work, "openvino", [f"{name}=={version}", *PYTHON_NEEDS])
