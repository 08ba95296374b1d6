"""Clients that send requests without pause, and account for each of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any

from driver import Driver, DriverLost

import atoll_ray
from atoll_ray.daemon import DaemonError

#: Limit of a request, in seconds.
REQUEST_S = 12.0

#: Pause between two requests of a client, in seconds.
PAUSE_S = 0.05


def vector(values: list[float]) -> dict[str, Any]:
    return {"datatype": "FP32", "shape": [len(values)], "data": values}


class Handle(atoll_ray.Handle):
    """A handle whose list of replicas comes from a driver, so it outlives the driver."""

    def __init__(self, name: str, driver: Driver) -> None:
        super().__init__(name, None)
        self._driver = driver

    def _ask_endpoints(self, timeout_s: float) -> list[atoll_ray.Endpoint]:
        try:
            answer = self._driver.ask("endpoints", timeout_s=max(timeout_s, 0.1), name=self.name)
        except RuntimeError as error:
            raise DriverLost(str(error)) from error
        return [atoll_ray.Endpoint(**one) for one in answer]

    def _awaited(self, until: float) -> list[atoll_ray.Endpoint]:
        # The deployment is not scaled by its load.
        return []

    def _why(self) -> str:
        return "see the driver"


class Load:
    """Clients, each in a thread. Each request has its own numbers, so a wrong answer is seen.

    Every other client repeats a request until it succeeds, for ``give_up_s`` seconds. The others send it once. Each
    request that was sent must end with its answer or with an error, within its limit.
    """

    def __init__(self, name: str, driver: Driver, clients: int, give_up_s: float) -> None:
        self.wrong: list[str] = []
        self.right = 0
        #: Those of them that were sent once.
        self.right_once = 0
        #: The errors of requests that were sent once, which their clients know of.
        self.told: Counter[str] = Counter()
        self._give_up_s = give_up_s
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        #: When the current request of each client began.
        self._began: dict[int, float] = {}
        self._handle = Handle(name, driver)
        numbered = range(clients)
        self._threads = [threading.Thread(target=self._run, args=[client], daemon=True) for client in numbered]
        for thread in self._threads:
            thread.start()

    def look(self, slowness: float) -> list[str]:
        """What is wrong until now, with requests that hang."""
        now = time.monotonic()
        limit = self._give_up_s + 2 * REQUEST_S * slowness
        with self._lock:
            waits = {client: now - began for client, began in self._began.items() if now - began > limit}
            return self.wrong + [f"client {client} waits for {waited:.0f} s" for client, waited in waits.items()]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=self._give_up_s + 4 * REQUEST_S)
        alive = sum(thread.is_alive() for thread in self._threads)
        if alive:
            self.wrong.append(f"{alive} clients never came back")

    def _run(self, client: int) -> None:
        while not self._stop.wait(PAUSE_S):
            with self._lock:
                number = next(self._numbers)
                self._began[client] = time.monotonic()
            try:
                self._one(number % 4096, idempotent=client % 2 == 0)
            except Exception as error:
                # A thread that ended would send nothing more, and nothing would be checked.
                with self._lock:
                    self.wrong.append(f"request {number}: {error!r}")
            finally:
                with self._lock:
                    del self._began[client]

    def _one(self, number: int, idempotent: bool) -> None:
        until = time.monotonic() + self._give_up_s
        inputs = {"x": vector([number]), "b": vector([1.0])}
        while True:
            try:
                answer = self._handle.infer(inputs, class_="rt", idempotent=idempotent, timeout_s=REQUEST_S)
            except (atoll_ray.NoReplica, TimeoutError, DaemonError) as error:
                if not idempotent:
                    with self._lock:
                        self.told[f"{type(error).__name__} {getattr(error, 'status', '')}".strip()] += 1
                    return
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
                continue
            found = answer["outputs"][0]["data"]
            with self._lock:
                self.right += 1
                self.right_once += not idempotent
                if found != [3 * number + 1]:
                    self.wrong.append(f"3 * {number} + 1 is {found}")
            return
