"""The client of a daemon, over its Unix socket or over HTTP."""

import json
import os
import re
import ssl
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ._calls import Answer, Call, Object
from ._errors import AtollError, InvalidInput
from ._futures import Future, FutureStatus
from ._graphs import Graph, Manifest, manifest_text, new_name
from ._http import Http
from ._leases import Lease
from ._scope import Scope
from ._sessions import Session
from ._specs import Metadata, Model
from ._tensors import Array, decode, encode
from ._transports import Options, Socket, Transport, Web

# An address without a scheme, as in `localhost:8000`.
_ADDRESS = re.compile(r"[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")


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
        is_web = text is not None and ("://" in text or (_ADDRESS.fullmatch(text) and not os.path.exists(text)))
        if is_web and tenant is not None:
            raise InvalidInput("over HTTP, the token says which tenant it is")

        def connect() -> Transport:
            return Web(Http(text, token, timeout, tls)) if is_web and text is not None else Socket(text, tenant)

        self._connect = connect
        self._transport = connect()

    def _socket(self, what: str) -> Socket:
        if not isinstance(self._transport, Socket):
            raise InvalidInput(f"{what}: only for clients of a control socket, and this one is over HTTP")
        return self._transport

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

        inputs: an array for each input. It has the type of the input; nothing is converted. Over a
            socket, an input may also be an `Object`, or an output of a `Future`.
        outputs: names of the wanted outputs; by default all
        priority: 1 for real-time, 2 and above for best-effort, 0 for the model's own class
        deadline: seconds after which the request is cancelled
        instance: the instance whose share the request uses
        version, id, parameters: over HTTP only
        """
        options = Options(priority, deadline, instance, version, id, parameters)
        return self._transport.infer(model, inputs, outputs, options)

    def run(
        self, call: Call, *, priority: int = 0, deadline: float | None = None, instance: str | None = None
    ) -> Answer:
        """Calls functions one after the other, over a socket. Their tensors stay on the device.

        The options are those of `infer`; `instance` is one of the first function.
        """
        return self._socket("calls of several functions").run(call, Options(priority, deadline, instance))

    def submit(
        self,
        call: Call | str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        *,
        name: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        instance: str | None = None,
    ) -> Future:
        """Begins a call that continues in the background, over a socket.

        call: a call, or the name of a function to call with `inputs`
        name: name of the future; by default a random one
        """
        if isinstance(call, str):
            call = Call(call, inputs or {}, outputs)
        elif inputs is not None or outputs is not None:
            raise InvalidInput("the call has its inputs and outputs")
        return self._socket("futures").submit(name or new_name(), call, Options(priority, deadline, instance))

    def future(self, name: str) -> Future:
        """The future of this name, which another client of the tenant may have begun."""
        return Future(self._socket("futures"), name)

    def futures(self) -> list[FutureStatus]:
        """The tenant's futures, by name."""
        return [FutureStatus._of(each) for each in json.loads(self._socket("futures").native.futures())]

    def session(self, model: str, id: str | None = None) -> Session:
        """A session of a model with state, over HTTP. `id` is by default a random one."""
        if isinstance(self._transport, Socket):
            raise InvalidInput("sessions: only for clients over HTTP and rings, and this one has a control socket")
        return Session(self.infer, model, id)

    def put(self, value: Any, *, real_time: bool = False) -> Object:
        """Stores an array as an object of the tenant, over a socket.

        real_time: it is for real-time requests
        """
        tensor = encode("", value)
        digest = self._socket("objects").native.put(tensor, real_time)
        _, datatype, shape, elements = tensor
        return Object(digest, datatype, tuple(shape), elements.nbytes, real_time)

    def get(self, object: Object | str) -> Array:
        """The array of an object, or of its digest. One without a type is a vector of bytes."""
        return decode(*self._socket("objects").native.get(_digest(object)))

    def objects(self) -> list[Object]:
        """The tenant's objects, by digest."""
        return [Object._of(each) for each in json.loads(self._socket("objects").native.objects())]

    def remove_object(self, object: Object | str) -> None:
        """Removes an object, or the one with a digest."""
        self._socket("objects").native.remove_object(_digest(object))

    def deploy_graph(self, manifest: Manifest, name: str | None = None) -> Graph:
        """Deploys a graph of functions over a socket, or replaces the one of the same name.

        manifest: a path, the text of a manifest in TOML or JSON, or a mapping with its keys. Files that
            its stages name are sent with it.
        name: replaces the name in the manifest
        """
        socket = self._socket("graphs")
        return Graph(socket, json.loads(socket.native.deploy_graph(manifest_text(manifest), name)))

    def graph(self, name: str) -> Graph:
        """A graph of the tenant, over a socket."""
        socket = self._socket("graphs")
        return Graph(socket, json.loads(socket.native.explain_graph(name)))

    def graphs(self) -> list[Graph]:
        """The graphs of the tenant, by name, over a socket."""
        socket = self._socket("graphs")
        return [Graph(socket, each) for each in json.loads(socket.native.graphs())]

    def create_instance(
        self,
        name: str,
        function: str,
        *,
        sm_partition: float = 100.0,
        quota_request: float,
        quota_limit: float = 1.0,
        gpu_mem: int | None = None,
        latency_ms: int | None = None,
        real_time: bool | None = None,
    ) -> dict[str, Any]:
        """Creates an instance of a function: a share under which its requests run. For operators.

        sm_partition: compute units of the device, in percent
        quota_request, quota_limit: the fraction of the time that it gets whenever it has work, and at most
        gpu_mem: device memory in bytes; by default without a limit
        latency_ms: target latency of its requests; those that take longer are counted
        real_time: class of its requests that state none; by default that of the function

        Returns its report, with the fields of `atoll instance ls --json`.
        """
        spec = {
            "name": name,
            "function": function,
            "class": _class(real_time),
            "sm_partition": sm_partition,
            "quota_request": quota_request,
            "quota_limit": quota_limit,
            "gpu_mem": gpu_mem,
            "latency_ms": latency_ms,
        }
        created: dict[str, Any] = json.loads(self._socket("instances").native.create_instance(json.dumps(spec)))
        return created

    def resize_instance(
        self,
        instance: str,
        *,
        sm_partition: float | None = None,
        quota_request: float | None = None,
        quota_limit: float | None = None,
        gpu_mem: int | None = None,
        latency_ms: int | None = None,
    ) -> dict[str, Any]:
        """Changes an instance. Settings that are `None` stay as they are. Its requests continue. For operators."""
        resize = {
            "instance": instance,
            "sm_partition": sm_partition,
            "quota_request": quota_request,
            "quota_limit": quota_limit,
            "gpu_mem": gpu_mem,
            "latency_ms": latency_ms,
        }
        changed: dict[str, Any] = json.loads(self._socket("instances").native.resize_instance(json.dumps(resize)))
        return changed

    def remove_instance(self, instance: str) -> None:
        """Removes an instance; its requests end. For operators."""
        self._socket("instances").native.remove_instance(instance)

    def instances(self) -> list[dict[str, Any]]:
        """Instances, and shares of tenants."""
        found: list[dict[str, Any]] = json.loads(self._socket("instances").native.instances())
        return found

    def capacity(self) -> dict[str, Any]:
        """The capacity of each device, and the part that leases have. Needs the right to hold leases."""
        return self._transport.capacity()

    def lease(
        self,
        function: str,
        *,
        quota_request: float,
        gpu_mem: int,
        sm_partition: float = 100.0,
        quota_limit: float = 1.0,
        real_time: bool | None = None,
        real_time_slots: int | None = None,
        ttl: int = 15,
        holder: str | None = None,
        request_id: str | None = None,
    ) -> Lease:
        """Takes a lease of an instance of a function. Needs the right to hold leases.

        The options are those of `create_instance` except `latency_ms`, and:

        real_time_slots: 1 if `real_time`, else 0; without one it takes no real-time requests
        ttl: seconds until it ends without renewal, 5 to 600
        holder: name of who holds it; by default a random one
        request_id: a repetition with the same id and options gets the same lease
        """
        spec = {
            "request_id": request_id or uuid.uuid4().hex,
            "holder": holder or uuid.uuid4().hex,
            "function": function,
            "class": _class(real_time),
            "sm_partition": sm_partition,
            "quota_request": quota_request,
            "quota_limit": quota_limit,
            "gpu_mem": gpu_mem,
            "real_time_slots": real_time_slots,
            "ttl_s": ttl,
        }
        given = {key: value for key, value in spec.items() if value is not None}
        sent = time.monotonic()
        report = self._transport.grant_lease(given)
        return Lease(self._transport, self._connect, self.infer, function, report, sent)

    def leases(self) -> list[dict[str, Any]]:
        """The leases of the tenant."""
        return self._transport.leases()

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

    def interrupt(self) -> None:
        """Closes the connection from another thread. The running request is cancelled and fails."""
        self._transport.interrupt()

    def close(self) -> None:
        """Closes the connection when no other thread uses it.

        In a signal handler during a request of the same thread, ends that request.
        """
        self._transport.close()

    def _leave(self) -> None:
        self.close()


def _holds(check: Any) -> bool:
    try:
        return bool(check())
    except AtollError:
        return False


def _digest(object: Object | str) -> str:
    return object.digest if isinstance(object, Object) else object


def _class(real_time: bool | None) -> str | None:
    return None if real_time is None else "real-time" if real_time else "best-effort"
