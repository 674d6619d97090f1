"""Make .venv with everything that is locked in requirements.lock. Starts on any Python 3, to say clearly which ones will do.

CURLNB_TORCH_BACKEND: another build of torch and torchvision than the locked one, by the names of uv's --torch-backend: cpu, cu128, ...
"""

import hashlib
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "installed")
BACKEND = os.path.join(VENV, "torch_backend")
SUPPORTED = ("3.11", "3.12", "3.13")
OFFLINE = ("connect", "resolve host", "network", "dns", "timed out", "temporary failure")


def fail(line):
    sys.exit(f"curlnb set-up: {line}")


def supported_python():
    """This Python, else the newest supported one on the path."""
    here = ".".join(map(str, sys.version_info[:2]))
    if here in SUPPORTED:
        return sys.executable
    for version in reversed(SUPPORTED):
        found = shutil.which(f"python{version}")
        if found and subprocess.call([found, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return found
    fail(
        f"Python {here} is not supported and no {', '.join(SUPPORTED)} was found; install one or say `make PYTHON=/path/to/python3.12 ...`"
    )


def run(command, otherwise):
    """Run quietly; on failure show what was said and stop with one line."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout)
        offline = any(word in done.stdout.lower() for word in OFFLINE)
        fail("no network, or the package index cannot be reached; connect and run the command again" if offline else otherwise)


def read(*path):
    with open(os.path.join(*path)) as file:
        return file.read()


def without_torch(lock):
    """The lock's text without torch, torchvision and what only their CUDA build needs."""
    kept, keep = [], True
    for line in lock.splitlines(True):
        if line[:1].isalnum():
            keep = not line.startswith(("torch==", "torchvision==", "triton==", "nvidia-", "cuda-"))
        if keep:
            kept.append(line)
    return "".join(kept)


def torch_backend():
    """The build asked for, else the one chosen when .venv was made, so that it need not be repeated with every command."""
    kept = read(BACKEND) if os.path.exists(BACKEND) else ""
    return os.environ.get("CURLNB_TORCH_BACKEND", kept)


def main():
    if os.name == "nt":
        fail("Windows is not supported; use WSL")
    python, lock, backend = supported_python(), read(ROOT, "requirements.lock"), torch_backend()
    wanted = hashlib.sha256((lock + read(ROOT, "pyproject.toml") + backend).encode()).hexdigest()
    if os.path.exists(STAMP) and read(STAMP) == wanted:
        return
    print("curlnb set-up: installing into .venv (once; several GB on Linux, see the README for the CPU build of torch)", flush=True)
    inside = os.path.join(VENV, "bin", "python")
    if not os.path.exists(inside) or subprocess.call(
        [inside, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        run(
            [python, "-m", "venv", "--clear", VENV],
            "this Python has no venv module; install it (on Debian and Ubuntu: python3-venv) and try again",
        )
    if subprocess.call([inside, "-m", "uv", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        run([inside, "-m", "pip", "install", "--quiet", "uv>=0.5"], "uv could not be installed into .venv; see above")
    install = [inside, "-m", "uv", "pip", "install", "--quiet", "--python", inside]
    locked, failed = os.path.join(ROOT, "requirements.lock"), "the locked packages could not be installed; see above"
    if backend:
        pins = [line.split()[0] for line in lock.splitlines() if line.startswith(("torch==", "torchvision=="))]
        run([*install, "--torch-backend", backend, *pins], f"torch for {backend} could not be installed; see above")
        locked = os.path.join(VENV, "without_torch.txt")
        with open(locked, "w") as file:
            file.write(without_torch(lock))
    run([*install, "--no-deps", "--require-hashes", "-r", locked], failed)
    run([*install, "--no-deps", "--no-build-isolation", "--editable", ROOT], "curlnb itself could not be installed; see above")
    with open(BACKEND, "w") as file:
        file.write(backend)
    with open(STAMP, "w") as file:
        file.write(wanted)


if __name__ == "__main__":
    main()
