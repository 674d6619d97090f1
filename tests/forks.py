"""Commands, kernels and pytest's workers as forks of one process that has imported what they need,
which costs each five to twenty CPU seconds otherwise.

`forks.py serve SOCKET` is that process. `forks.py -m MODULE ...` asks it, at $TESTS_FORKS, for what
`python -m MODULE ...` would do, `forks.py kernel CONNECTION` for a kernel, `forks.py worker ...
CODE` for a worker of pytest-xdist, and `forks.py pool ...` for the process that forks a pool's
workers. Who asks stands for its fork: it passes on signals, ends with its status, and a fork whose
asker was killed is killed, too, with its whole session. Where nobody answers at $TESTS_FORKS each
is a process like any other.
"""

import ast
import atexit
import contextlib
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
import types
from multiprocessing import forkserver, util

PRELOADED = (
    "dask.distributed", "ipykernel.kernelapp", "ipywidgets", "matplotlib_inline.backend_inline",
    "papermill.engines", "sklearn.linear_model", "torch_geometric.nn", "torchvision.models",
    *(f"curlnb.companion.{name}" for name in ("notebook", "reproduce", "restamp")),
    *(f"curlnb.experiments.{name}" for name in ("graphs", "latent_images", "latent_text")),
    *(f"curlnb.experiments.{name}" for name in ("multiview", "sentences")),
)  # fmt: skip


def serve(address):
    """Import, then fork a keeper for whoever connects, until nobody holds this process's standard
    input any more.
    """
    os.environ["MPLBACKEND"] = (
        # read when matplotlib is imported; a kernel sets the same
        "module://matplotlib_inline.backend_inline"
    )
    for name in PRELOADED:
        importlib.import_module(name)
    torch = sys.modules["torch"]
    torch.optim.Adam(
        [torch.zeros(1, requires_grad=True)]
    )  # imports what torch leaves to whoever trains first, four seconds of it
    fork_pools()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no keeper is waited for
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen()
        while True:
            ready, _, _ = select.select([server, 0], [], [])
            if 0 in ready:
                return
            asker, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return keep(asker)
            asker.close()


def keep(asker):
    """Fork what is asked for, wait for it, pass on signals to it and its status back. In the fork,
    this returns when all is done.
    """
    head, fds, _, _ = socket.recv_fds(asker, 4, 5)
    if not head:
        os._exit(0)  # who asked is gone
    told = json.loads(_received(asker, *struct.unpack("I", head)))
    alive, held = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        asker.close()
        os.close(alive)  # `held` stays open as long as this process lives
        become(told, fds)
        return
    for fd in (held, *fds):
        os.close(fd)
    while True:
        ready, _, _ = select.select([asker, alive], [], [])
        if alive in ready:
            break
        number = asker.recv(1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, number[0] if number else signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):  # it is gone
        asker.sendall(struct.pack("i", status))
    os._exit(0)


def become(told, fds):
    """Be the process that was asked for: its environment, folder, standard streams, arguments."""
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(told["environment"])
    if known := sys.modules.get("curlnb.runs.environment"):  # what its import would set here
        os.environ["ONEDNN_MAX_CPU_ISA"] = known.WITHOUT_TILES
    os.chdir(told["folder"])
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    status = 0
    try:
        run(told["arguments"], fds[3:])
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise  # a message, which Python prints
        status = end.code or 0
    leave(status)


def leave(status):
    """End as Python does, but for taking modules apart: their pages are shared with the process
    that forks, and would all be copied.

    Files that are still open are not flushed, and no `__del__` runs.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 255)


def run(arguments, more=()):
    """more: further files that the asker has open for it."""
    kind, name, *rest = arguments
    if kind == "pool":
        forkserver.main(*more, json.loads(name), **json.loads(rest[0]))
    elif kind == "kernel":
        from ipykernel import kernelapp

        # A notebook on the reference draws its figures once, as the SVG that it saves: nbval does
        # not compare pictures.
        drawn = (
            ["--InlineBackend.figure_formats=set()"]
            if os.environ.get("CURLNB_REFERENCE") == "1"
            else []
        )
        kernelapp.launch_new_instance(argv=["-f", name, *drawn])
    elif kind == "worker":
        if "matplotlib" in sys.modules:
            sys.modules["matplotlib"].use("agg")
        main = sys.modules["__main__"] = types.ModuleType("__main__")  # as of `python -c`
        exec(rest[-1], vars(main))
    else:
        if "curlnb.companion.reproduce" in sys.modules:  # what it starts are forks, too
            sys.modules["curlnb.companion.reproduce"].PYTHON = [sys.executable, __file__, "-m"]
        if name == "curlnb.companion.execute" and "TESTS_FORKS" in os.environ:  # its kernel, too
            kernels = os.path.dirname(os.environ["TESTS_FORKS"])
            os.environ |= {"JUPYTER_PATH": kernels, "JUPYTER_PREFER_ENV_PATH": "0"}
        sys.path.insert(0, os.getcwd())
        sys.argv = [name, *rest]
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def fork_pools():
    """Let this process have the forking process of its pools from $TESTS_FORKS: of its own it would
    import for ten CPU seconds.
    """
    spawn = util.spawnv_passfds

    def spawn_or_ask(path, line, passed):
        started = re.fullmatch(
            r"from multiprocessing.forkserver import main; "
            r"main\((\d+), (\d+), (\[.*?\]), \*\*(\{.*\})\)",
            str(line[-1]),
        )
        if started and "TESTS_FORKS" in os.environ:
            *fds, preloaded, data = map(ast.literal_eval, started.groups())
            line = [
                line[0],
                __file__,
                "pool",
                json.dumps(preloaded),
                json.dumps(data),
                *map(str, fds),
            ]
        return spawn(path, line, passed)

    util.spawnv_passfds = spawn_or_ask


def ask(server, arguments, more=()):
    """The exit status of the fork that does what `arguments` say."""
    told = json.dumps(
        {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    ).encode()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    socket.send_fds(server, [struct.pack("I", len(told))], [0, 1, 2, *more])
    server.sendall(told)
    for fd in more:
        os.close(fd)
    server.settimeout(1.0)
    parent = os.getppid()
    while os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            return int(*struct.unpack("i", _received(server, 4)))
    return 1  # who wanted it is gone: so is this, and with it the fork


def connected(address):
    """A connection to the process that forks; None where there is none, or none that answers within
    two minutes.
    """
    until = time.monotonic() + 120
    while address and time.monotonic() < until:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.connect(address)
            return server
        except OSError:  # still importing
            server.close()
            time.sleep(0.05)
    return None


def _received(sender, count):
    got = b""
    while len(got) < count:
        part = sender.recv(count - len(got))
        if not part:
            raise EOFError("the other end is gone")
        got += part
    return got


def main():
    sys.path.pop(0)  # this file's folder
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job that a shell began in the background ignores it, and all its children
    arguments = sys.argv[1:]
    if arguments[0] == "serve":
        serve(arguments[1])
        return
    more = []
    if arguments[0] == "pool":
        *arguments, one, other = arguments
        more = [int(one), int(other)]
    if server := connected(os.environ.get("TESTS_FORKS")):
        status = ask(server, arguments, more)
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        sys.exit(status)
    else:
        run(arguments, more)


if __name__ == "__main__":
    main()
