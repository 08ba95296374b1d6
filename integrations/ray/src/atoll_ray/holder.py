"""Holds a lease at a daemon: requests it, renews it, and requests a new one when it has ended."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable

from .daemon import Daemon, DaemonError, Lease, LeaseRequest

log = logging.getLogger(__name__)

#: Renewals of a lease within its time to live.
RENEWALS = 3

#: Pause before a request that was refused or lost is sent again, in seconds.
PAUSE_S = 1.0


class Holder:
    """The holder of one lease.

    Only the daemon's clock decides when a lease ends. The holder uses this machine's monotonic clock: it treats the
    lease as valid for its time to live from when the last renewal was *sent*. So it never treats a lease as valid
    that the daemon has ended for lack of a renewal.
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
        # If an answer is lost, the request is repeated with the same id, so it is granted only once.
        self._request_id = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Holds the lease in a separate thread until :meth:`stop`."""
        self._thread = threading.Thread(target=self._run, name="atoll-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Releases the lease. A second call does nothing."""
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
                # It expires after its time to live.
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
        """Requests or renews the lease. Returns the seconds until the next step."""
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
                # If the thread ended, the lease would expire without a visible reason.
                log.exception("a step of holder %s failed", self._name)
                with self._lock:
                    self._problem = f"a step of the holder failed: {error!r}"
                pause = PAUSE_S
