"""How clients reach a daemon: its control socket, or HTTP."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from . import _native
from ._calls import Answer, Call, microseconds
from ._errors import InvalidInput
from ._futures import Future
from ._http import Http
from ._specs import Metadata, Model, specs
from ._tensors import Array, encode_all


@dataclass(frozen=True)
class Options:
    """How a request runs."""

    priority: int = 0
    deadline: float | None = None
    instance: str | None = None
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Any] | None = None

    def deadline_us(self) -> int | None:
        """The deadline in microseconds."""
        return None if self.deadline is None else max(1, microseconds("deadline", self.deadline))

    def real_time(self) -> bool | None:
        """Whether the class is real-time; `None` for the model's own."""
        return None if self.priority == 0 else self.priority == 1


class Transport(Protocol):
    """The interface that control sockets and HTTP share."""

    def close(self) -> None: ...
    def interrupt(self) -> None: ...
    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        options: Options,
    ) -> dict[str, Array]: ...
    def models(self) -> list[Model]: ...
    def metadata(self, model: str) -> Metadata: ...
    def load(self, model: str, name: str | None, real_time: bool | None, private: bool) -> str: ...
    def unload(self, model: str) -> None: ...
    def live(self) -> bool: ...
    def ready(self, model: str | None) -> bool: ...
    def capacity(self) -> dict[str, Any]: ...
    def leases(self) -> list[dict[str, Any]]: ...
    def grant_lease(self, spec: Mapping[str, Any]) -> dict[str, Any]: ...
    def lease_action(self, action: str, hold: Mapping[str, Any]) -> dict[str, Any]: ...


class Socket:
    """The functions, graphs, objects and futures of a tenant, through the control socket."""

    def __init__(self, socket: str | None, tenant: str | None):
        self.native = _native.Connection(socket, tenant)

    def close(self) -> None:
        self.native.close()

    def interrupt(self) -> None:
        self.native.interrupt()

    def infer(
        self, model: str, inputs: Mapping[str, Any], outputs: Sequence[str] | None, options: Options
    ) -> dict[str, Array]:
        return self.run(Call(model, inputs, outputs), options).tensors

    def run(self, call: Call, options: Options) -> Answer:
        """Calls functions."""
        return Answer._of(self.native.invoke(call._stages, *_terms(options)))

    def submit(self, name: str, call: Call, options: Options) -> Future:
        """Begins a call of functions."""
        self.native.defer(name, call._stages, *_terms(options))
        return Future(self, name)

    def models(self) -> list[Model]:
        functions = json.loads(self.native.functions())
        return [
            Model(each["name"], "1", "UNAVAILABLE" if each.get("failure") else "READY", each.get("failure") or "")
            for each in functions
        ]

    def metadata(self, model: str) -> Metadata:
        described = json.loads(self.native.describe(model))
        return Metadata(model, specs(described["inputs"]), specs(described["outputs"]))

    def load(self, model: str, name: str | None, real_time: bool | None, private: bool) -> str:
        deployed: str = json.loads(self.native.deploy(model, name, real_time, private))["name"]
        return deployed

    def unload(self, model: str) -> None:
        self.native.remove(model)

    def live(self) -> bool:
        self.native.functions()
        return True

    def ready(self, model: str | None) -> bool:
        return model is None or any(each.name == model and each.state == "READY" for each in self.models())

    def capacity(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.native.capacity())
        return found

    def leases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.native.leases())
        return found

    def grant_lease(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        granted: dict[str, Any] = json.loads(self.native.grant_lease(json.dumps(spec)))
        return granted

    def lease_action(self, action: str, hold: Mapping[str, Any]) -> dict[str, Any]:
        text = json.dumps(hold)
        if action == "release":
            self.native.release_lease(text)
            return {}
        ask = self.native.renew_lease if action == "renew" else self.native.take_over_lease
        changed: dict[str, Any] = json.loads(ask(text))
        return changed


def _terms(options: Options) -> tuple[bool | None, int | None, str | None]:
    if options.version or options.id or options.parameters:
        raise InvalidInput("a version, an id and parameters can be given over HTTP and through rings only")
    return options.real_time(), options.deadline_us(), options.instance


class Web:
    """The models that a tenant may call, through the HTTP port."""

    def __init__(self, http: Http):
        self._http = http

    def close(self) -> None:
        self._http.close()

    def interrupt(self) -> None:
        self._http.interrupt()

    def infer(
        self, model: str, inputs: Mapping[str, Any], outputs: Sequence[str] | None, options: Options
    ) -> dict[str, Array]:
        parameters = dict(options.parameters or {})
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
        return Metadata(found["name"], specs(found["inputs"]), specs(found["outputs"]))

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

    def capacity(self) -> dict[str, Any]:
        found: dict[str, Any] = self._http.json("GET", "/v2/capacity")
        return found

    def leases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._http.json("GET", "/v2/leases")
        return found

    def grant_lease(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        granted: dict[str, Any] = self._http.json("POST", "/v2/leases", spec)
        return granted

    def lease_action(self, action: str, hold: Mapping[str, Any]) -> dict[str, Any]:
        body = {"epoch": hold["epoch"], "holder": hold["holder"]}
        changed: dict[str, Any] | None = self._http.json("POST", f"/v2/leases/{hold['lease']}/{action}", body)
        return changed or {}


def _quoted(name: str) -> str:
    return quote(name, safe="")
