"""Make .venv with everything that is locked in requirements.lock. Starts on any Python 3, to say
clearly which ones will do.

Every file is held to a SHA-256 of this repository before anything of it is unpacked or run: uv, the
installer, and setuptools to tools/uv.lock, the packages to requirements.lock. Wheels alone are
installed, with the exception of SOURCE_ONLY. A checkout that was copied or moved is set up anew,
and of two set-ups at once one waits for the other.

CURLNB_TORCH_BACKEND  another build of torch and torchvision than the locked one: cpu, which
                      requirements-cpu.lock has the digests of, or any other name that uv's
                      --torch-backend knows (cu128, ...), of which no digest is known here; empty:
                      the locked one. Where it is not set, no NVIDIA device is seen and the index of
                      CPU builds answers: cpu
CURLNB_UNVERIFIED     1: install such a build unchecked
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")
INSIDE = os.path.join(VENV, "bin", "python")
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
SOURCE_ONLY = "antlr4-python3-runtime"  # published as a source archive only
WHEELS = ("--only-binary", ":all:")
CHECKED = ("--require-hashes", *WHEELS)
OFFLINE = ("connect", "resolve host", "network", "dns", "timed out", "temporary failure")
FOREIGN = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH")


def fail(line):
    sys.exit("curlnb set-up: " + line)


def supported_python():
    """This Python, else the newest supported one on the path."""
    here = ".".join(map(str, sys.version_info[:2]))
    if here in SUPPORTED:
        return sys.executable
    for version in reversed(SUPPORTED):
        found = shutil.which("python" + version)
        if found and call([found, "-c", ""]).returncode == 0:
            return found
    fail(
        f"Python {here} is not supported and no {', '.join(SUPPORTED)} was found; install one "
        "or say `make PYTHON=/path/to/python3.12 ...`"
    )


def call(command, given=None):
    """The command, done, with what it said; `given` is its standard input."""
    own = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return subprocess.run(
        command,
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**own, "PIP_USER": "0"},
    )


def run(command, otherwise, given=None):
    """The command; where it fails, what it said and one line."""
    done = call(command, given)
    if done.returncode:
        sys.stderr.write(done.stdout)
        if any(word in done.stdout.lower() for word in OFFLINE):
            fail(
                "no network, or the package index cannot be reached; connect and run the command "
                "again"
            )
        fail(otherwise + "; see above")


def read(*path):
    """The text of a file below the checkout; empty where there is none."""
    path = os.path.join(ROOT, *path)
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read()


def write(name, text):
    with open(os.path.join(VENV, name), "w") as file:
        file.write(text)


def without_torch(lock):
    """The lock's text without torch, torchvision and what only their CUDA build needs."""
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.M)
    cuda = re.compile(r"(torch|torchvision|triton|nvidia-[\w.-]+|cuda-[\w.-]+)==")
    return "".join(entry for entry in entries if not cuda.match(entry))


def torch_list(backend, lock):
    """What to install of another build of torch: a list with digests, or, where there is none and
    the user says to do without, the locked versions.
    """
    listed = read("requirements-" + backend + ".lock")
    if listed:
        return listed
    if os.environ.get("CURLNB_UNVERIFIED") == "1":
        return "\n".join(re.findall(r"^(?:torch|torchvision)==\S+", lock, re.M))
    fail(
        f"no SHA-256 is known here of torch for {backend!r}; take the locked build or "
        "CURLNB_TORCH_BACKEND=cpu, or say CURLNB_UNVERIFIED=1 to install it unchecked"
    )


def needs_no_cuda():
    """Whether this is a Linux machine on which no NVIDIA device is seen."""
    seen = os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")
    return sys.platform == "linux" and not seen and not shutil.which("nvidia-smi")


def install(*options):
    """A command that installs with uv into .venv what is named, and nothing that this needs."""
    uv = [INSIDE, "-m", "uv", "pip", "install", "--quiet", "--python", INSIDE, "--no-deps"]
    return [*uv, *options]


def main():
    if os.name == "nt":
        fail("Windows is not supported; use WSL")
    import fcntl

    place = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        set_up(supported_python())
    finally:
        os.close(place)


def set_up(python):
    asked = os.environ.get("CURLNB_TORCH_BACKEND")
    backend = read(VENV, "torch_backend") if asked is None else asked
    lock, uv = read("requirements.lock"), read("tools", "uv.lock")
    other = "" if backend == "cpu" and sys.platform == "darwin" else backend  # a Mac's has no CUDA
    listed = torch_list(other, lock) if other else ""

    def stamp():
        everything = "\n".join([ROOT, lock, uv, read("pyproject.toml"), listed, backend])
        return hashlib.sha256(everything.encode()).hexdigest()

    if read(VENV, "installed") == stamp():
        return
    print("curlnb set-up: installing into .venv (once; several GB with CUDA)", flush=True)
    if read(VENV, "place") != ROOT or call([INSIDE, "-m", "pip", "--version"]).returncode:
        run(
            [python, "-m", "venv", "--clear", VENV],
            "this Python has no venv module: install it (on Debian and Ubuntu: python3-venv)",
        )
        write("place", ROOT)
    pip = [INSIDE, "-m", "pip", "install", "--quiet", "--no-deps", *CHECKED]
    run([*pip, "-r", os.path.join(ROOT, "tools", "uv.lock")], "uv could not be installed")
    if asked is None and not backend and needs_no_cuda():
        os.environ.setdefault("UV_HTTP_TIMEOUT", "10")
        listed = read("requirements-cpu.lock")
        trial = install(*CHECKED, "--dry-run", "--torch-backend", "cpu", "-r", "-")
        if call(trial, listed).returncode == 0:
            print("curlnb set-up: no NVIDIA device here: torch's CPU build is taken", flush=True)
            backend = other = "cpu"
        else:
            print(
                "curlnb set-up: the index of CPU builds does not answer: torch's CUDA build is "
                "taken, 6 GB",
                flush=True,
            )
            listed = ""
    if other:
        checked = CHECKED if "--hash" in listed else WHEELS
        of_torch = install(*checked, "--torch-backend", other, "-r", "-")
        run(of_torch, f"torch for {other} could not be installed", listed)
    rest = without_torch(lock) if other else lock
    source = ("--no-binary", SOURCE_ONLY, "--no-build-isolation")
    packages = install(*CHECKED, *source, "-r", "-")
    run(packages, "the locked packages could not be installed", rest)
    # By a .pth file: setuptools' finder comes after a folder named curlnb where Python was started.
    own = install("--no-build-isolation", "-C", "editable_mode=compat", "--editable", ROOT)
    run(own, "curlnb itself could not be installed")
    write("torch_backend", backend)
    write("installed", stamp())
    print("curlnb set-up: done; `make help` lists the commands", flush=True)


if __name__ == "__main__":
    main()
