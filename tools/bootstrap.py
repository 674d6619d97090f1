"""Make .venv with everything that is locked in requirements.lock. Starts on any Python 3, to say
clearly which ones will do.

Every file is held to a SHA-256 of this repository before anything of it is unpacked or run: uv, the
installer, to tools/uv.lock, the packages to requirements.lock. Wheels alone are installed, with the
exception of SOURCE_ONLY.

CURLNB_TORCH_BACKEND  another build of torch and torchvision than the locked one: cpu, which
requirements-cpu.lock has the digests of, or
                      any other name that uv's --torch-backend knows (cu128, ...), of which no
                      digest is known here
CURLNB_UNVERIFIED     1: install such a build unchecked
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "installed")
BACKEND = os.path.join(VENV, "torch_backend")
SUPPORTED = ("3.11", "3.12", "3.13")
SOURCE_ONLY = (
    "antlr4-python3-runtime",
)  # published as a source archive only, whose build uses the setuptools that is locked
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
        if (
            found
            and subprocess.call(
                [found, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            == 0
        ):
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
        fail(
            "no network, or the package index cannot be reached; connect and run the command again"
            if offline
            else otherwise
        )


def read(*path):
    with open(os.path.join(*path)) as file:
        return file.read()


def of_lock(lock, wanted):
    """The lock's text with those packages alone of which `wanted` says so by their name."""
    kept, keep = [], True
    for line in lock.splitlines(True):
        if line[:1].isalnum():
            keep = wanted(line.partition("==")[0])
        if keep:
            kept.append(line)
    return "".join(kept)


def without_torch(lock):
    """The lock's text without torch, torchvision and what only their CUDA build needs."""
    return of_lock(
        lock,
        lambda name: (
            name not in ("torch", "torchvision", "triton")
            and not name.startswith(("nvidia-", "cuda-"))
        ),
    )


def torch_list(backend):
    """The file with the digests of another build of torch; None where there is none, and the user
    says to do without.
    """
    listed = os.path.join(ROOT, "requirements-" + backend + ".lock")
    if re.match(r"\w+$", backend) and os.path.exists(listed):
        return listed
    if os.environ.get("CURLNB_UNVERIFIED") == "1":
        return None
    fail(
        f"no SHA-256 is known here of torch for {backend!r}; take the locked build or CURLNB_TORCH_BACKEND=cpu, "
        "or say CURLNB_UNVERIFIED=1 to install it unchecked"
    )


def uv_is(version, inside):
    """Whether .venv has this uv; the version of another one would not be the locked one."""
    done = subprocess.run(
        [inside, "-m", "uv", "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return done.returncode == 0 and done.stdout.split()[1:2] == [version]


def torch_backend():
    """The build asked for, else the one chosen when .venv was made, so that it need not be repeated
    with every command.
    """
    kept = read(BACKEND) if os.path.exists(BACKEND) else ""
    return os.environ.get("CURLNB_TORCH_BACKEND", kept)


def main():
    if os.name == "nt":
        fail("Windows is not supported; use WSL")
    python, lock, backend = supported_python(), read(ROOT, "requirements.lock"), torch_backend()
    uv, own_torch = (
        read(ROOT, "tools", "uv.lock"),
        backend and not (backend == "cpu" and sys.platform == "darwin"),
    )  # a Mac's has no CUDA
    listed = torch_list(backend) if own_torch else None
    everything = (
        lock + read(ROOT, "pyproject.toml") + uv + (read(listed) if listed else "") + backend
    )
    wanted = hashlib.sha256(everything.encode()).hexdigest()
    if os.path.exists(STAMP) and read(STAMP) == wanted:
        return
    print(
        "curlnb set-up: installing into .venv (once; several GB on Linux, see the README for the CPU build of torch)",
        flush=True,
    )
    inside = os.path.join(VENV, "bin", "python")
    if not os.path.exists(inside) or subprocess.call(
        [inside, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        run(
            [python, "-m", "venv", "--clear", VENV],
            "this Python has no venv module; install it (on Debian and Ubuntu: python3-venv) and try again",
        )
    if not uv_is(re.search(r"^uv==(\S+)", uv, re.M)[1], inside):
        checked = [
            "--require-hashes",
            "--only-binary",
            ":all:",
            "--no-deps",
            "-r",
            os.path.join(ROOT, "tools", "uv.lock"),
        ]
        run(
            [inside, "-m", "pip", "install", "--quiet", *checked],
            "uv could not be installed into .venv; see above",
        )
    install = [inside, "-m", "uv", "pip", "install", "--quiet", "--python", inside]
    checked, failed = (
        ["--require-hashes", "--no-deps"],
        "the locked packages could not be installed; see above",
    )
    rest = lock
    if own_torch:
        failure, rest = (
            f"torch for {backend} could not be installed; see above",
            without_torch(lock),
        )
        if listed:
            run(
                [*install, *checked, "--no-build", "--torch-backend", backend, "-r", listed],
                failure,
            )
        else:
            pins = [
                line.split()[0]
                for line in lock.splitlines()
                if line.startswith(("torch==", "torchvision=="))
            ]
            run([*install, "--no-build", "--torch-backend", backend, *pins], failure)
    for name, part, how in (
        ("wheels.txt", of_lock(rest, lambda name: name not in SOURCE_ONLY), "--no-build"),
        (
            "source_only.txt",
            of_lock(rest, lambda name: name in SOURCE_ONLY),
            "--no-build-isolation",
        ),
    ):
        with open(os.path.join(VENV, name), "w") as file:
            file.write(part)
        run([*install, *checked, how, "-r", os.path.join(VENV, name)], failed)
    run(
        [*install, "--no-deps", "--no-build-isolation", "--editable", ROOT],
        "curlnb itself could not be installed; see above",
    )
    with open(BACKEND, "w") as file:
        file.write(backend)
    with open(STAMP, "w") as file:
        file.write(wanted)


if __name__ == "__main__":
    main()
