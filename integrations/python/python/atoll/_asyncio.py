"""The client for asyncio: a pool of connections, each with a thread while it has a request."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from ._calls import Answer, Call, FutureOutput, Object
from ._client import Client
from ._errors import AtollError, ConnectionFailed
from ._futures import Future, FutureStatus
from ._sessions import Steps
from ._specs import Metadata, Model
from ._tensors import Array

_T = TypeVar("_T")

# Default number of connections of a client, which bounds its concurrent requests.
_CONNECTIONS = 8


class _Job:
    """A request in a thread. It can be interrupted at any time, also while its client connects."""

    def __init__(self, client: Client | None):
        self._lock = threading.Lock()
        self._client = client
        self._is_over = False

    def connected(self, connect: Callable[[], Client]) -> Client:
        """Its client. It is interrupted if the request was, so that the request fails at once."""
        client = self._client or connect()
        with self._lock:
            self._client = client
            if self._is_over:
                client.interrupt()
        return client

    def interrupt(self) -> None:
        """Ends the request, which the daemon cancels."""
        with self._lock:
            self._is_over = True
            if self._client is not None:
                self._client.interrupt()

    def note_lost(self) -> None:
        """Marks its connection as lost, so that no other request uses it."""
        with self._lock:
            self._is_over = True

    def end(self) -> Client | None:
        """The client, if another request can use it."""
        with self._lock:
            if not self._is_over:
                return self._client
            if self._client is not None:
                self._client.close()
            return None


class AsyncClient:
    """A client of a daemon for asyncio. No call of it blocks the loop.

        async with atoll.AsyncClient("http://localhost:8000", connections=16) as client:
            answers = await asyncio.gather(*(client.infer("magika", {"bytes": x}) for x in inputs))

    target, options: as for `Client`
    connections: most requests at one time; further ones wait for their turn

    If a task is cancelled, for example by `asyncio.timeout`, the daemon cancels its request. The
    elements of inputs must not change until the answer is there.
    """

    def __init__(self, target: Any = None, *, connections: int = _CONNECTIONS, **options: Any):
        self._connect = lambda: Client(target, **options)
        self._turns = asyncio.Semaphore(connections)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="atoll")
        self._idle: list[Client] = []
        self._jobs: set[_Job] = set()
        self._is_closed = False

    async def use(self, work: Callable[[Client], _T]) -> _T:
        """Calls a function in a thread, with a `Client` that no other request uses meanwhile.

        For everything that has no method here: `await client.use(lambda client: client.instances())`.
        """
        async with self._turns:
            if self._is_closed:
                raise ConnectionFailed("the client is closed")
            job = _Job(self._idle.pop() if self._idle else None)
            self._jobs.add(job)

            def run() -> _T:
                try:
                    return work(job.connected(self._connect))
                except ConnectionFailed:
                    job.note_lost()
                    raise

            running = self._threads.submit(run)
            # When the thread has ended, also after a cancellation of this task.
            loop = asyncio.get_running_loop()
            running.add_done_callback(lambda _: _soon(loop, self._ended, job))
            try:
                return await asyncio.wrap_future(running)
            except asyncio.CancelledError:
                job.interrupt()
                raise

    def _ended(self, job: _Job) -> None:
        self._jobs.discard(job)
        client = job.end()
        if client is not None and self._is_closed:
            client.close()
        elif client is not None:
            self._idle.append(client)

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for client in idle:
            client.close()

    async def close(self) -> None:
        """Closes the connections. Requests that run are cancelled and fail."""
        self._is_closed = True
        for job in list(self._jobs):
            job.interrupt()
        self._close_idle()
        # Off the loop: the threads need a moment to end.
        await asyncio.to_thread(self._threads.shutdown)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def infer(
        self, model: str, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None, **options: Any
    ) -> dict[str, Array]:
        """Runs a model, as `Client.infer`."""
        return await self.use(lambda client: client.infer(model, inputs, outputs, **options))

    async def run(self, call: Call, **options: Any) -> Answer:
        """Calls functions one after the other, as `Client.run`."""
        return await self.use(lambda client: client.run(call, **options))

    async def submit(
        self,
        call: Call | str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        **options: Any,
    ) -> "AsyncFuture":
        """Begins a call that continues in the background, as `Client.submit`."""
        begun = await self.use(lambda client: client.submit(call, inputs, outputs, **options))
        return AsyncFuture(self, begun.name)

    def future(self, name: str) -> "AsyncFuture":
        """The future of this name, which another client of the tenant may have begun."""
        return AsyncFuture(self, name)

    def session(self, model: str, id: str | None = None) -> "AsyncSession":
        """A session of a model with state, over HTTP. `id` is by default a random one."""
        return AsyncSession(self, model, id)

    async def infer_graph(self, graph: str, inputs: Mapping[str, Any], **options: Any) -> Answer:
        """Calls a graph of the tenant over a socket, as `Graph.infer`."""
        return await self.use(lambda client: client.graph(graph).infer(inputs, **options))

    async def metadata(self, model: str) -> Metadata:
        """The inputs and outputs of a model."""
        return await self.use(lambda client: client.metadata(model))

    async def models(self) -> list[Model]:
        """The models over HTTP, the functions over a socket, with their states."""
        return await self.use(lambda client: client.models())

    async def functions(self) -> list[str]:
        """Names of the models or functions that can be called."""
        return await self.use(lambda client: client.functions())

    async def load(self, model: Any, name: str | None = None, **options: Any) -> str:
        """Loads a model, as `Client.load`."""
        return await self.use(lambda client: client.load(model, name, **options))

    async def unload(self, model: str) -> None:
        """Unloads a model, or removes a function."""
        await self.use(lambda client: client.unload(model))

    async def live(self) -> bool:
        """Whether the daemon answers."""
        return await self._holds(lambda client: client._transport.live())

    async def ready(self, model: str | None = None) -> bool:
        """Whether the daemon, or a model, accepts requests."""
        return await self._holds(lambda client: client._transport.ready(model))

    async def _holds(self, check: Callable[[Client], bool]) -> bool:
        try:
            try:
                return await self.use(check)
            except ConnectionFailed:
                # The daemon may have been restarted since the connections were opened.
                self._close_idle()
                return await self.use(check)
        except AtollError:
            return False

    async def put(self, value: Any, *, real_time: bool = False) -> Object:
        """Stores an array as an object of the tenant, over a socket."""
        return await self.use(lambda client: client.put(value, real_time=real_time))

    async def get(self, object: Object | str) -> Array:
        """The array of an object, or of its digest."""
        return await self.use(lambda client: client.get(object))

    async def objects(self) -> list[Object]:
        """The tenant's objects, by digest."""
        return await self.use(lambda client: client.objects())

    async def remove_object(self, object: Object | str) -> None:
        """Removes an object, or the one with a digest."""
        await self.use(lambda client: client.remove_object(object))


def _soon(loop: asyncio.AbstractEventLoop, work: Callable[[_Job], None], job: _Job) -> None:
    """Runs a function in the loop, or here if the loop has ended."""
    try:
        loop.call_soon_threadsafe(work, job)
    except RuntimeError:
        work(job)


class AsyncFuture:
    """A call that continues in the background, as `Future`."""

    def __init__(self, client: AsyncClient, name: str):
        self._client = client
        self.name = name
        """Its name, which no other future of the tenant has."""

    def output(self, name: str) -> FutureOutput:
        """One of its outputs, as an input of another call. It need not have ended."""
        return FutureOutput(self.name, name)

    async def result(self, timeout: float | None = None) -> Answer:
        """Waits until it ends, and returns its outputs. A cancellation of the task ends the waiting only."""
        return await self._do(lambda future: future.result(timeout))

    async def status(self) -> FutureStatus:
        """Its state."""
        return await self._do(lambda future: future.status())

    async def done(self) -> bool:
        """Whether it has ended, also by a failure."""
        return await self._do(lambda future: future.done())

    async def cancel(self) -> None:
        """Cancels it, and waits until it has ended."""
        await self._do(lambda future: future.cancel())

    async def forget(self) -> None:
        """Drops its outputs. If it has not ended, it continues."""
        await self._do(lambda future: future.forget())

    async def _do(self, work: Callable[[Future], _T]) -> _T:
        return await self._client.use(lambda client: work(client.future(self.name)))


class AsyncSession:
    """The requests that share a state, as `Session`. One is sent at a time, in order."""

    def __init__(self, client: AsyncClient, model: str, id: str | None):
        self._client = client
        self._steps = Steps(id)
        self._turn = asyncio.Lock()
        self.model = model
        """Name of the model."""

    @property
    def id(self) -> str:
        """Its id."""
        return self._steps.id

    async def infer(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] = (), *, last: bool = False, **options: Any
    ) -> dict[str, Array]:
        """The next request, as `Session.infer`."""
        async with self._turn:
            parameters = self._steps.parameters(last)
            answer = await self._client.infer(self.model, inputs, outputs, **options, **parameters)
            self._steps.note(last)
            return answer

    async def run(
        self, requests: Iterable[Mapping[str, Any]], outputs: Sequence[str] = (), **options: Any
    ) -> AsyncIterator[dict[str, Array]]:
        """The answers to all requests of the session. The last of them ends it."""
        rest = iter(requests)
        inputs = next(rest, None)
        while inputs is not None:
            following = next(rest, None)
            yield await self.infer(inputs, outputs, last=following is None, **options)
            inputs = following
