"""Holds a lease at a daemon: asks for it, renews it, and asks for another one when it has ended."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable

from .daemon import Daemon, DaemonError, Lease, LeaseRequest

log = logging.getLogger(__name__)

#: A lease is renewed this often in its time to live.
RENEWALS = 3

#: Pause before a request that was refused or lost is sent again, in seconds.
PAUSE_S = 1.0


class Holder:
    """The holder of one lease.

    Times are those of this machine's monotonic clock, and only differences count: the daemon's clock alone decides when
    a lease ends. A lease is valid here until its time to live after the last renewal was *sent*, which is never later
    than at the daemon.
    """

    def __init__(
        self,
        daemon: Daemon,
        request: LeaseRequest,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._daemon = daemon
        self._request = request
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._valid_until = 0.0
        self._problem: str | None = "no lease was asked for yet"
        # A request whose answer is lost is repeated with the same id, so that it is granted once.
        self._request_id = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Holds the lease in a thread of its own until :meth:`stop`."""
        self._thread = threading.Thread(target=self._run, name="atoll-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the lease. Does nothing the second time."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * self._daemon.timeout_s)
        with self._lock:
            lease, self._lease = self._lease, None
            self._problem = "it was stopped"
        if lease is not None:
            try:
                self._daemon.release(lease)
            except DaemonError:
                # It ends by its time to live.
                pass

    def current(self) -> Lease | None:
        """The lease, if it is valid."""
        with self._lock:
            return self._lease if self._clock() < self._valid_until else None

    @property
    def problem(self) -> str | None:
        """Why there is no valid lease; ``None`` if there is one."""
        with self._lock:
            if self._lease is not None and self._clock() < self._valid_until:
                return None
            return self._problem or "the lease could not be renewed in time"

    def step(self) -> float:
        """Asks for the lease, or renews it. Returns the seconds until the next step."""
        with self._lock:
            lease = self._lease
        sent = self._clock()
        try:
            if lease is None:
                lease = self._daemon.grant(self._request, self._request_id, self._name)
            else:
                lease = self._daemon.renew(lease)
        except DaemonError as error:
            return self._refused(lease, error)
        with self._lock:
            self._lease, self._valid_until, self._problem = lease, sent + lease.ttl_s, None
        return lease.ttl_s / RENEWALS

    def _refused(self, lease: Lease | None, error: DaemonError) -> float:
        with self._lock:
            self._problem = str(error)
            if lease is not None and error.has_ended:
                self._lease = None
                self._request_id = uuid.uuid4().hex
                return 0.0
            if lease is None and error.status == 409:
                # The lease of this request has ended, though its answer never arrived.
                self._request_id = uuid.uuid4().hex
        return PAUSE_S

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            try:
                pause = self.step()
            except Exception as error:
                # The thread must not end: the lease would, and nothing would say why.
                log.exception("a step of holder %s failed", self._name)
                with self._lock:
                    self._problem = f"a step of the holder failed: {error!r}"
                pause = PAUSE_S
