"""Graphs of functions."""

import base64
import json
import os
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ._calls import Answer
from ._errors import InvalidInput, NotFound
from ._futures import Future
from ._specs import Metadata, specs
from ._tensors import divided
from ._transports import Options, Socket

Manifest: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"


class Graph:
    """A graph of functions of a tenant. `Client.deploy_graph` and `Client.graph` return graphs.

    Over HTTP, `Client.infer` calls a graph like a model.
    """

    def __init__(self, socket: Socket, report: Mapping[str, Any]):
        self._socket = socket
        self.metadata = Metadata(report["name"], specs(report["inputs"]), specs(report["outputs"]))
        """Its inputs and outputs."""
        self.model: str = report["model"]
        """Its name as a model over HTTP and gRPC."""
        self.failure: str | None = report["failure"]
        """Why it cannot be called, for example because a function was removed."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        priority: int = 0,
        deadline: float | None = None,
        price_max: float | None = None,
        id: str | None = None,
    ) -> Answer:
        """Calls it, and waits for its outputs.

        inputs: for each input an array, an `Object`, or a `FutureOutput`
        priority: 1 for real-time, 2 and above for best-effort
        deadline: seconds after which the call is cancelled. It is refused if it would take longer.
        price_max: the most that it may cost, in units of account
        id: calls with the same id get the same versions of functions
        """
        sent, references = divided(inputs, 0)
        terms = _terms(priority, deadline)
        return Answer._of(self._socket.native.invoke_graph(self.name, sent, references, *terms, price_max, id))

    def submit(
        self,
        inputs: Mapping[str, Any],
        *,
        name: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        price_max: float | None = None,
        id: str | None = None,
    ) -> Future:
        """Begins a call in the background. `name` is that of the future; by default a random one."""
        sent, references = divided(inputs, 0)
        name = name or new_name()
        terms = _terms(priority, deadline)
        self._socket.native.defer_graph(name, self.name, sent, references, *terms, price_max, id)
        return Future(self._socket, name)

    def explain(self, *, deadline: float | None = None, price_max: float | None = None) -> dict[str, Any]:
        """Its stages and costs, and the decision that a call with these limits would get now.

        The fields are those of `atoll graph explain --json`.
        """
        deadline_us = Options(deadline=deadline).deadline_us()
        explained: dict[str, Any] = json.loads(self._socket.native.explain_graph(self.name, deadline_us, price_max))
        return explained

    def remove(self) -> None:
        """Deletes it. Its functions stay."""
        self._socket.native.remove_graph(self.name)

    def __call__(self, **inputs: Any) -> Any:
        """Calls it. The result is the array of its output, or the arrays by name if it has several."""
        outputs = self.infer(inputs).tensors
        return next(iter(outputs.values())) if len(self.metadata.outputs) == 1 else outputs

    def __repr__(self) -> str:
        return f"<atoll.Graph {self.name}>"


def new_name() -> str:
    """A name for a future."""
    return uuid.uuid4().hex


def _terms(priority: int, deadline: float | None) -> tuple[bool | None, int | None]:
    options = Options(priority, deadline)
    return options.real_time(), options.deadline_us()


def manifest_text(manifest: Manifest) -> str:
    """The text of a manifest for the daemon, with the files that its stages name.

    manifest: a path, the text of a manifest in TOML or JSON, or a mapping with its keys. Files are
        relative to the folder of the path, or the current one.
    """
    folder = Path()
    if isinstance(manifest, Mapping):
        return _with_files(_dumped(manifest), manifest, folder)
    if isinstance(manifest, str) and ("\n" in manifest or manifest.lstrip().startswith("{")):
        text = manifest
    else:
        path = Path(manifest)
        try:
            text, folder = path.read_text(), path.parent
        except FileNotFoundError as error:
            raise NotFound(f"there is no manifest {path}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path}: {error}") from error
    try:
        parsed = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except ValueError:
        # The daemon says what is wrong.
        return text
    return _with_files(text, parsed, folder)


def _with_files(text: str, manifest: Mapping[str, Any], folder: Path) -> str:
    if "files" in manifest:
        return text
    names = [name for stage in _stages(manifest) if (name := _file(stage)) is not None]
    if not names:
        return text
    try:
        files = {name: base64.b64encode((folder / name).read_bytes()).decode() for name in names}
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {error.filename}, which the manifest names") from error
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {error.strerror}") from error
    return _dumped({**manifest, "files": files})


def _stages(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    stages = manifest.get("stage", ())
    return [each for each in stages if isinstance(each, Mapping)] if isinstance(stages, list | tuple) else []


def _file(stage: Mapping[str, Any]) -> str | None:
    options = stage.get("options")
    name = stage.get("wasm") or (options.get("tokenizer") if isinstance(options, Mapping) else None)
    return name if isinstance(name, str) else None


def _dumped(manifest: Mapping[str, Any]) -> str:
    try:
        return json.dumps(manifest)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the manifest: {error}") from error
