"""The client of a daemon, over its Unix socket or over HTTP."""

import json
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import numpy

from . import _native
from ._errors import AtollError, InvalidInput
from ._http import Http
from ._scope import Scope
from ._tensors import Array, decode, dtype_of, encode_all

# An address without a scheme, as in `localhost:8000`.
_ADDRESS = re.compile(r"[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    datatype: str
    """Type of its elements as in KServe: FP32, INT64, ..."""
    shape: tuple[int, ...]
    """Its sizes; -1 where they are open."""

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """Type of its arrays."""
        return dtype_of(self.datatype)


@dataclass(frozen=True)
class Metadata:
    """The inputs and outputs of a model, in order."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Model:
    """A model, or a function, that a daemon has."""

    name: str
    version: str
    state: str
    """READY, or another state of Triton's."""
    reason: str
    """Why it is not ready."""


class _Transport(Protocol):
    def close(self) -> None: ...
    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        options: "_Options",
    ) -> dict[str, Array]: ...
    def models(self) -> list[Model]: ...
    def metadata(self, model: str) -> Metadata: ...
    def load(self, model: str, name: str | None, real_time: bool | None, private: bool) -> str: ...
    def unload(self, model: str) -> None: ...
    def live(self) -> bool: ...
    def ready(self, model: str | None) -> bool: ...


@dataclass(frozen=True)
class _Options:
    priority: int
    deadline: float | None
    instance: str | None
    version: str
    id: str
    parameters: Mapping[str, Any]

    def deadline_us(self) -> int | None:
        return None if self.deadline is None else max(1, round(self.deadline * 1e6))


def _specs(tensors: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(each["name"], each["datatype"], tuple(each["shape"])) for each in tensors)


class _Socket:
    """The functions of a tenant, through the control socket."""

    def __init__(self, socket: str | None, tenant: str | None):
        self._connection = _native.Connection(socket, tenant)

    def close(self) -> None:
        self._connection.close()

    def infer(
        self, model: str, inputs: Mapping[str, Any], outputs: Sequence[str] | None, options: _Options
    ) -> dict[str, Array]:
        if options.version or options.id or options.parameters:
            raise InvalidInput("a version, an id and parameters can be given over HTTP and through rings only")
        real_time = None if options.priority == 0 else options.priority == 1
        answer = self._connection.invoke(
            model,
            encode_all(inputs),
            list(outputs) if outputs else None,
            real_time,
            options.deadline_us(),
            options.instance,
        )
        return {name: decode(datatype, shape, elements) for name, datatype, shape, elements in answer}

    def models(self) -> list[Model]:
        functions = json.loads(self._connection.functions())
        return [
            Model(each["name"], "1", "UNAVAILABLE" if each.get("failure") else "READY", each.get("failure") or "")
            for each in functions
        ]

    def metadata(self, model: str) -> Metadata:
        described = json.loads(self._connection.describe(model))
        return Metadata(model, _specs(described["inputs"]), _specs(described["outputs"]))

    def load(self, model: str, name: str | None, real_time: bool | None, private: bool) -> str:
        deployed: str = json.loads(self._connection.deploy(model, name, real_time, private))["name"]
        return deployed

    def unload(self, model: str) -> None:
        self._connection.remove(model)

    def live(self) -> bool:
        self._connection.functions()
        return True

    def ready(self, model: str | None) -> bool:
        return model is None or any(each.name == model and each.state == "READY" for each in self.models())


class _Web:
    """The models that a tenant may call, through the HTTP port."""

    def __init__(self, http: Http):
        self._http = http

    def close(self) -> None:
        self._http.close()

    def infer(
        self, model: str, inputs: Mapping[str, Any], outputs: Sequence[str] | None, options: _Options
    ) -> dict[str, Array]:
        parameters = dict(options.parameters)
        if options.priority:
            parameters["priority"] = options.priority
        if options.deadline is not None:
            parameters["deadline_us"] = options.deadline_us()
        if options.instance:
            parameters["instance"] = options.instance
        return self._http.infer(model, options.version, encode_all(inputs), outputs, options.id, parameters)

    def models(self) -> list[Model]:
        index = self._http.json("POST", "/v2/repository/index", {})
        return [
            Model(each["name"], each.get("version", ""), each.get("state", ""), each.get("reason", ""))
            for each in index
        ]

    def metadata(self, model: str) -> Metadata:
        found = self._http.json("GET", f"/v2/models/{_quoted(model)}")
        return Metadata(found["name"], _specs(found["inputs"]), _specs(found["outputs"]))

    def load(self, model: str, name: str | None, real_time: bool | None, private: bool) -> str:
        if name is not None or real_time is not None or private:
            raise InvalidInput("over HTTP, a model of the repository is loaded as its settings say")
        self._http.json("POST", f"/v2/repository/models/{_quoted(model)}/load", {})
        return model

    def unload(self, model: str) -> None:
        self._http.json("POST", f"/v2/repository/models/{_quoted(model)}/unload", {})

    def live(self) -> bool:
        self._http.json("GET", "/v2/health/live")
        return True

    def ready(self, model: str | None) -> bool:
        self._http.json("GET", "/v2/health/ready" if model is None else f"/v2/models/{_quoted(model)}/ready")
        return True


def _quoted(name: str) -> str:
    return quote(name, safe="")


class Function:
    """A model as a function: `function(x, b)`, or `function(x=x, b=b)`.

    The result is the array of its output, or the arrays by name if it has several.
    """

    def __init__(self, client: "Client", metadata: Metadata):
        self._client = client
        self.metadata = metadata

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.metadata.name

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Calls the model with its inputs in order or by name."""
        names = [each.name for each in self.metadata.inputs]
        if len(inputs) > len(names):
            raise InvalidInput(f"`{self.name}` has {len(names)} inputs, not {len(inputs)}")
        given = dict(zip(names, inputs))
        for name in given.keys() & named.keys():
            raise InvalidInput(f"input `{name}` is given twice")
        outputs = self._client.infer(self.name, {**given, **named})
        return next(iter(outputs.values())) if len(self.metadata.outputs) == 1 else outputs

    def __repr__(self) -> str:
        tensors = ", ".join(f"{each.name}: {each.datatype}{list(each.shape)}" for each in self.metadata.inputs)
        return f"<atoll.Function {self.name}({tensors})>"


class Client(Scope):
    """A client of a daemon.

    target: an address such as `http://localhost:8000`, or the path of a control socket; by default
        the user's socket, `$XDG_RUNTIME_DIR/atoll.sock` or `/run/atoll.sock`
    tenant: over a socket, the tenant to act for; by default that of the user
    token: over HTTP, a token of the daemon; by default `$ATOLL_TOKEN`
    timeout: over HTTP, how many seconds to wait for the daemon
    tls: over HTTPS, certificates; by default those of the system

    Over HTTP, a client can call the models of the repository and the public functions of its
    tenant; over a socket, the functions of its tenant. Threads that share a client wait for each
    other.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        tenant: str | None = None,
        token: str | None = None,
        timeout: float | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        text = None if target is None else os.fspath(target)
        self._transport: _Transport
        if text is not None and ("://" in text or (_ADDRESS.fullmatch(text) and not os.path.exists(text))):
            if tenant is not None:
                raise InvalidInput("over HTTP, the token says which tenant it is")
            self._transport = _Web(Http(text, token, timeout, tls))
        else:
            self._transport = _Socket(text, tenant)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        instance: str | None = None,
        version: str = "",
        id: str = "",
        **parameters: Any,
    ) -> dict[str, Array]:
        """Runs a model, and returns its outputs by name.

        inputs: an array for each input. It has the type of the input; nothing is converted.
        outputs: names of the wanted outputs; by default all
        priority: 1 for real-time, 2 and above for best-effort, 0 for the model's own class
        deadline: seconds after which the request is cancelled
        instance: the instance whose share the request uses
        version, id, parameters: over HTTP only
        """
        options = _Options(priority, deadline, instance, version, id, parameters)
        return self._transport.infer(model, inputs, outputs, options)

    def fn(self, model: str) -> Function:
        """A model as a function, which takes and returns arrays."""
        return Function(self, self.metadata(model))

    def metadata(self, model: str) -> Metadata:
        """The inputs and outputs of a model."""
        return self._transport.metadata(model)

    def models(self) -> list[Model]:
        """The models over HTTP, the functions over a socket, with their states."""
        return self._transport.models()

    def functions(self) -> list[str]:
        """Names of the models or functions that can be called."""
        return sorted({each.name for each in self.models() if each.state == "READY"})

    def load(
        self,
        model: str | os.PathLike[str],
        name: str | None = None,
        *,
        real_time: bool | None = None,
        private: bool = False,
    ) -> str:
        """Loads a model, and returns the name to call it by.

        Over a socket, `model` is the path of a bundle, which becomes a function of the tenant.
        `name` is by default that of its graph; `real_time` is the class of requests that name none;
        nothing but the socket reaches a private function. Over HTTP, `model` is the name of a model
        of the repository.
        """
        return self._transport.load(os.fspath(model), name, real_time, private)

    def unload(self, model: str) -> None:
        """Unloads a model, or removes a function."""
        self._transport.unload(model)

    def live(self) -> bool:
        """Whether the daemon answers."""
        return _holds(self._transport.live)

    def ready(self, model: str | None = None) -> bool:
        """Whether the daemon, or a model, accepts requests."""
        return _holds(lambda: self._transport.ready(model))

    def close(self) -> None:
        """Closes the connection."""
        self._transport.close()

    def _leave(self) -> None:
        self.close()


def _holds(check: Any) -> bool:
    try:
        return bool(check())
    except AtollError:
        return False
