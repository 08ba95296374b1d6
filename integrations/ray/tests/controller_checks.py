"""Checks of controllers and hints, with a Ray that is played by this file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from machines import check, raises
from ray.exceptions import GetTimeoutError, RayActorError

from atoll_ray import controller, graphs, hints
from atoll_ray.controller import Controller, InGraph
from atoll_ray.endpoint import Endpoint, NoReplica
from atoll_ray.hints import Hint, Hints
from atoll_ray.spec import Spec


class Call:
    """A call of a replica: with an answer, an error, or nothing yet."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


class Actor:
    """Stands for a replica."""

    def __init__(self, number: int, strategy: Any, spec: Spec) -> None:
        self.number, self.strategy, self.spec = number, strategy, spec
        endpoint = Endpoint("u", "f", f"lease-{number}", number, number, number, "node")
        self.says: Any = {"endpoint": endpoint, "problem": None}
        self.is_killed = False
        self.is_stopped = False

    @property
    def report(self) -> mock.Mock:
        return mock.Mock(remote=lambda: Call(self.says))

    @property
    def stop(self) -> mock.Mock:
        return mock.Mock(remote=self._stop)

    def _stop(self) -> Call:
        self.is_stopped = True
        return Call("stopped")


class Ray:
    """Stands for the module of Ray. ``before_start`` runs before each start of a replica."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.before_start: Callable[[], None] = lambda: None

    def remote(self, **_: Any) -> Callable[[type], Ray]:
        return lambda _: self

    def options(self, **options: Any) -> mock.Mock:
        return mock.Mock(remote=lambda spec, _: self._start(options["scheduling_strategy"], spec))

    def _start(self, strategy: Any, spec: Spec) -> Actor:
        self.before_start()
        self.actors.append(Actor(len(self.actors), strategy, spec))
        return self.actors[-1]

    def wait(self, calls: list[Call], timeout: float) -> tuple[list[Call], list[Call]]:
        ready = [call for call in calls if call.answer != "hangs"]
        return ready, [call for call in calls if call not in ready]

    def get(self, call: Call, timeout: float | None = None) -> Any:
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def kill(self, actor: Actor) -> None:
        actor.is_killed = True


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@contextlib.contextmanager
def played(
    replicas: int, graph: InGraph | None = None, scaling: dict[str, int] | None = None
) -> Iterator[tuple[Controller, Ray, Clock, dict[str, str]]]:
    """A controller whose threads do not run, and its Ray, clock and kept values."""
    ray, clock, kept = Ray(), Clock(), {} if scaling else {"value": str(replicas)}
    keeper = mock.Mock(value=lambda first: kept.get("value", first), set=lambda value: kept.update(value=value))
    spec = Spec.of("d", "f", 10, (0.1, 0.2), "1M", "be", replicas, 15, headroom=2 if scaling else 0, scaling=scaling)
    with (
        mock.patch.object(controller, "ray", ray),
        mock.patch.object(controller, "time", clock),
        mock.patch.object(controller, "Kept", lambda _: keeper),
        mock.patch.object(controller.threading, "Thread"),
    ):
        yield Controller(spec, None, graph), ray, clock, kept


def test_controller() -> None:
    with played(2) as (one, ray, clock, kept):
        one._look()
        check(len(ray.actors) == 2 and one.endpoints() == [], "they have not answered yet")
        one._look()
        check([found.instance for found in one.endpoints()] == ["lease-0", "lease-1"], one.status())

        # A replica that has worked is replaced at once, and one that never had a lease after a pause.
        ray.actors[0].says = RayActorError()
        one._look()
        check(ray.actors[0].is_killed and len(ray.actors) == 3, one.status())
        ray.actors[2].says = RayActorError()
        one._look()
        one._look()
        check(len(ray.actors) == 3 and len(one.endpoints()) == 1, one.status())
        clock.now += 1.0
        one._look()
        one._look()
        check(len(ray.actors) == 4 and len(one.endpoints()) == 2, one.status())
        # One that answered before and does not any more.
        ray.actors[1].says = "hangs"
        one._look()
        clock.now += controller.SILENT_S + 0.1
        one._look()
        check(ray.actors[1].is_killed and len(ray.actors) == 5, one.status())
        one._look()

        # Surplus replicas are no longer listed, keep their leases for a while, release them, and end.
        one.scale(1)
        check(kept["value"] == "1", kept)
        one._look()
        check([found.instance for found in one.endpoints()] == ["lease-3"], one.status())
        check(one.status()["ending"] == 1, one.status())
        last = ray.actors[4]
        clock.now += controller.DRAIN_S - 0.1
        one._look()
        check(not last.is_stopped, "a client may have it in its list")
        clock.now += 0.2
        one._look()
        check(last.is_stopped and not last.is_killed, "it releases its lease first")
        one._look()
        check(last.is_killed and one.status()["ending"] == 0, one.status())


def test_start() -> None:
    # While Ray's tables are out of reach, clients get the list, and no start is lost.
    with played(1) as (one, ray, _, _kept):
        one._look()
        one._look()
        one.scale(3)
        seen: list[Any] = []

        def fails() -> None:
            seen.append((len(one.endpoints()), [found["problem"] for found in one.status()["replicas"]]))
            if len(seen) == 2:
                raise RayActorError()

        ray.before_start = fails
        raises(RayActorError, "", one._look)
        new, started = "it is being started", "its machine is not found yet"
        check(seen == [(1, [None, new, new]), (1, [None, started, new])], seen)
        ray.before_start = lambda: None
        one._look()
        one._look()
        check(len(ray.actors) == 3 and len(one.endpoints()) == 3, one.status())


def test_copies() -> None:
    places = mock.Mock(strategy=lambda copy, stage: (copy, stage))
    with played(1, InGraph(places, 4, 2)) as (one, ray, _, _kept):
        during: list[set[int]] = []
        ray.before_start = lambda: during.append(one.copies())
        one._look()
        one._look()
        check([actor.strategy for actor in ray.actors] == [(0, 4), (1, 4)], "each in the place of its copy")
        # The place of a copy is in use from before the start of its replica on.
        check(during == [{0, 1}, {0, 1}], during)
        ray.actors[0].says = RayActorError()
        one._look()
        check(ray.actors[2].strategy == (0, 4), "the successor has the same place")
        one._look()
        one.scale(1)
        one._look()
        check([copy for copy, _, _ in one.replicas()] == [0] and one.copies() == {0, 1}, "copy 1 is ending")
        one.scale(2)
        one._look()
        check(len(ray.actors) == 3, "its successor waits for the place")


def test_first_request() -> None:
    for error, kind, says in [
        (GetTimeoutError(), TimeoutError, "did not answer in time"),
        (RayActorError(), NoReplica, "does not answer"),
    ]:
        asked: list[float] = []

        def get(_: Any, timeout: float, error: Exception = error, asked: list[float] = asked) -> Any:
            asked.append(timeout)
            raise error

        with mock.patch.object(graphs.ray, "get", get):
            handle = graphs.GraphHandle("g", mock.Mock())
            raises(kind, says, lambda handle=handle: handle.infer({}, deadline_s=0.2))  # type: ignore[misc]
            check(asked == [0.2], "within the deadline of the request")
            raises(kind, says, lambda handle=handle: handle.infer({}))  # type: ignore[misc]


def test_restarted_hints() -> None:
    hint = Hint.of([{"x": 1.0}], 2)
    for is_restarted in (False, True):
        context = mock.Mock(was_current_actor_reconstructed=is_restarted)
        with (
            mock.patch.object(hints, "ray", mock.Mock(get_runtime_context=lambda context=context: context)),
            mock.patch.object(hints.threading, "Thread"),
            mock.patch.object(hints, "request_resources") as sent,
        ):
            one = Hints()
            one._send()
            check(not sent.called, "at first nothing: others may use the request, and deployments repeat their hints")
            one._not_before = 0.0
            one._send()
            # What the predecessor has sent is taken back, unless a deployment repeats it.
            check([call.kwargs for call in sent.mock_calls] == [{"bundles": []}] * is_restarted, sent.mock_calls)
            one.tell("a", hint)
            one._send()
            one._send()
            check(sent.mock_calls[is_restarted:] == [mock.call(bundles=[{"x": 1.0}] * 2)], sent.mock_calls)
            check(one.sent() == [{"x": 1.0}] * 2, one.sent())


def test_all() -> None:
    test_controller()
    test_start()
    test_copies()
    test_first_request()
    test_restarted_hints()
