"""Daemons that belong to a Python program."""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ._client import Client
from ._errors import DeadlineExceeded, InvalidInput, NotFound, Unavailable
from ._program import compile, program, reason
from ._ring import Ring
from ._scope import Scope
from ._tensors import Array

_BUNDLE, _ONNX = ".kg", ".onnx"

_POLL_SECONDS = 0.01

# How long a daemon may take to stop, in addition to the time that requests may continue.
_STOP_SECONDS = 15.0

# The daemons of this program. They are stopped when it ends.
_running: "set[Server]" = set()


class Server(Scope):
    """A daemon that `serve` started. It stops when the `with` block or the program ends."""

    def __init__(self, repository: Path, folder: Path, is_temporary: bool, options: Sequence[str], timeout: float):
        self.folder = folder
        """State, log and socket of the daemon."""
        self.log = folder / "atoll.log"
        """What the daemon logs."""
        self.socket = folder / "atoll.sock"
        """Its control socket."""
        self._is_temporary = is_temporary
        self._owner = os.getpid()
        ready = folder / "ready"
        ready.unlink(missing_ok=True)
        arguments = [program(), "serve", "--model-repository", str(repository), "--exit-on-error"]
        # An option may switch gRPC off, which goes with no port.
        ports = ("http", "metrics") if "--no-grpc" in options else ("http", "grpc", "metrics")
        for port in ports:
            arguments += [f"--{port}-port", "0"]
        arguments += ["--control-socket", str(self.socket), "--state", str(folder / "state")]
        arguments += ["--ready-file", str(ready), *options]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        _running.add(self)
        try:
            addresses = self._addresses(ready, time.monotonic() + timeout)
        except BaseException:
            self.stop()
            raise
        self.url = f"http://{addresses['http']}"
        """Address of the HTTP port."""
        self.grpc = addresses.get("grpc")
        """Address of the gRPC port, as in `127.0.0.1:8001`."""
        self.metrics = f"http://{addresses['metrics']}/metrics"
        """Address of the metrics."""

    def client(self, **options: Any) -> Client:
        """A client over HTTP, with the options of `Client`."""
        return Client(self.url, **options)

    def control(self, tenant: str | None = None) -> Client:
        """A client over the control socket."""
        return Client(self.socket, tenant=tenant)

    def ring(self, **options: Any) -> Ring:
        """A ring, with the options of `Ring`."""
        return Ring(self.socket, **options)

    def is_running(self) -> bool:
        """Whether the daemon's process runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Stops the daemon. Running requests may finish."""
        _running.discard(self)
        if self.is_running():
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _leave(self) -> None:
        self.stop()

    def _addresses(self, ready: Path, end: float) -> dict[str, str]:
        """Waits until the daemon is ready."""
        while not ready.exists():
            if not self.is_running():
                log = self.log.read_text(errors="replace")
                raise Unavailable(f"the daemon did not start: {reason(log)}")
            if time.monotonic() > end:
                raise DeadlineExceeded(f"the daemon did not get ready in time; its log is {self.log}")
            time.sleep(_POLL_SECONDS)
        lines = ready.read_text().splitlines()
        return {name: address for name, _, address in (line.partition(" ") for line in lines)}


@atexit.register
def _stop_all() -> None:
    for server in list(_running):
        # A process that was forked has a copy of the set, and not the daemons.
        if server._owner == os.getpid():
            server.stop()


def serve(
    *models: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    timeout: float = 300.0,
) -> Server:
    """Starts a daemon on free ports, and returns when it is ready.

    models: ONNX files and bundles, or one model repository (a folder)
    folder: where the daemon keeps its state, socket and log; by default a folder that is deleted
    options: further options of `atoll serve`, as in `["--device", "cuda"]`
    timeout: how many seconds it may take until the models are loaded

    Raises `Unavailable` with the daemon's reason if it does not start, also if a model cannot be
    loaded.
    """
    paths = [Path(model) for model in models]
    for path in paths:
        if not path.exists():
            raise NotFound(f"there is no model {path}")
    is_temporary = folder is None
    if folder is None:
        place = Path(tempfile.mkdtemp(prefix="atoll-"))
    else:
        place = Path(folder).absolute()
        place.mkdir(parents=True, exist_ok=True)
    try:
        if len(paths) == 1 and paths[0].is_dir():
            repository = paths[0].absolute()
        else:
            repository = place / "models"
            repository.mkdir(exist_ok=True)
            for path in paths:
                _add(path, repository)
        return Server(repository, place, is_temporary, options, timeout)
    except BaseException:
        if is_temporary:
            shutil.rmtree(place, ignore_errors=True)
        raise


def _add(model: Path, repository: Path) -> None:
    """Puts a model into a repository, as a link if that is possible."""
    if model.suffix not in (_BUNDLE, _ONNX):
        raise InvalidInput(f"{model} is neither an ONNX file nor a bundle ({_BUNDLE})")
    place = repository / model.name
    place.unlink(missing_ok=True)
    try:
        os.link(model, place)
    except OSError:
        shutil.copy2(model, place)


class _Own:
    """The daemon that `infer` runs models in, and the functions that it has for their files."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.server: Server | None = None
        self.client: Client | None = None
        self.functions: dict[Path, tuple[tuple[int, int], str]] = {}
        self.count = 0

    def function(self, path: Path) -> tuple[Client, str]:
        """The function for a file. A file that has changed is loaded again."""
        with self.lock:
            if self.server is None or self.client is None or not self.server.is_running():
                self.functions.clear()
                self.server = serve(options=["--no-grpc"])
                self.client = self.server.control()
            status = path.stat()
            state = (status.st_mtime_ns, status.st_size)
            known = self.functions.get(path)
            if known is None or known[0] != state:
                if known is not None:
                    self.client.unload(known[1])
                    del self.functions[path]
                self.count += 1
                bundle = path
                if path.suffix == _ONNX:
                    bundle = compile(path, self.server.folder / f"{self.count}.kg", targets=["host"])
                name = self.client.load(bundle, f"file-{self.count}")
                known = self.functions[path] = (state, name)
            return self.client, known[1]


_own = _Own()


def infer(
    model: str | os.PathLike[str],
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
    **options: Any,
) -> dict[str, Array]:
    """Runs a model, and returns its outputs by name.

    model: an ONNX file or a bundle, which runs in a daemon that belongs to this program; or the name
        of a function of the user's daemon
    options: as for `Client.infer`
    """
    path = Path(model)
    if path.suffix not in (_BUNDLE, _ONNX):
        with Client() as client:
            return client.infer(os.fspath(model), inputs, outputs, **options)
    if not path.exists():
        raise NotFound(f"there is no model {path}")
    client, name = _own.function(path.resolve())
    return client.infer(name, inputs, outputs, **options)
