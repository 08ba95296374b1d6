"""Leases: shares of a device for one function and a limited time."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from ._errors import AtollError, Cancelled, Denied, InternalError, InvalidInput, NotFound
from ._scope import Scope
from ._tensors import Array

if TYPE_CHECKING:
    from ._transports import Transport

# Renewals within the time to live of a lease.
_RENEWALS = 3

# Pause before a renewal is retried that failed, or that another action on the lease prevented.
_PAUSE_SECONDS = 1.0


class Lease(Scope):
    """A lease, which `Client.lease` grants. It ends unless it is renewed.

    In a `with` block a thread renews it, over a connection of its own; the end of the block releases
    it. Only the daemon's clock decides when it ends. `is_valid` uses the time at which the last
    renewal was sent, so it is never true for a lease that has ended for lack of a renewal.
    """

    def __init__(
        self,
        transport: "Transport",
        another: Callable[[], "Transport"],
        infer: Callable[..., dict[str, Array]],
        function: str,
        report: Mapping[str, Any],
        sent: float,
    ):
        self._transport = transport
        self._another = another
        self._infer = infer
        self.function = function
        """Name of its function."""
        # Held during each action, so that the daemon's and this epoch differ only while it is held. Its own
        # thread can lock it again, in a signal handler.
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem: AtollError | None = None
        self._note(report, sent)

    def _note(self, report: Mapping[str, Any], sent: float) -> None:
        # Changes nothing if the report lacks a field.
        valid_until, _ = sent + float(report["ttl_s"]), _hold(report)
        self._report, self._valid_until, self._problem = report, valid_until, None

    @property
    def number(self) -> int:
        """Its number, which no other lease gets."""
        return int(self._report["lease"])

    @property
    def epoch(self) -> int:
        """The number of its grant or of its last takeover; later ones are higher."""
        return int(self._report["epoch"])

    @property
    def holder(self) -> str:
        """Its holder."""
        return str(self._report["holder"])

    @property
    def instance(self) -> str:
        """Its instance. Requests that name it run under its share."""
        return str(self._report["instance"])

    @property
    def device(self) -> str:
        """Its device, as in `host:0`."""
        return str(self._report["device"])

    @property
    def ttl(self) -> int:
        """Seconds until it ends without a renewal."""
        return int(self._report["ttl_s"])

    @property
    def report(self) -> dict[str, Any]:
        """All its fields, as in the reference of HTTP."""
        return dict(self._report)

    @property
    def problem(self) -> AtollError | None:
        """Why the last renewal failed."""
        return self._problem

    def is_valid(self) -> bool:
        """Whether it has not ended."""
        return time.monotonic() < self._valid_until

    def infer(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None, **options: Any
    ) -> dict[str, Array]:
        """Calls its function under its share, as `Client.infer`."""
        return self._infer(self.function, inputs, outputs, instance=self.instance, **options)

    def renew(self) -> None:
        """Extends it by its time to live. Raises an exception if it has ended or has another holder."""
        self._renew(self._transport)

    def _renew(self, transport: "Transport") -> None:
        with self._lock:
            sent = time.monotonic()
            self._note(transport.lease_action("renew", _hold(self._report)), sent)

    def take_over(self, holder: str) -> None:
        """Gives it to another holder, with a higher epoch. The holder before can use it no longer."""
        with self._lock:
            sent = time.monotonic()
            hold = {**_hold(self._report), "holder": holder}
            self._note(self._transport.lease_action("takeover", hold), sent)

    def release(self) -> None:
        """Ends it. Also succeeds if it has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            self._transport.lease_action("release", _hold(self._report))
            self._valid_until = 0.0

    def keep(self) -> None:
        """Renews it in a thread until `release`. The `with` statement does so, too."""
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="atoll-lease", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        transport: Transport | None = None
        pause = self.ttl / _RENEWALS
        while not self._stop.wait(pause):
            # Without waiting, since `release` waits for this thread and may hold the lock.
            if not self._lock.acquire(blocking=False):
                pause = _PAUSE_SECONDS
                continue
            try:
                transport = transport or self._another()
                self._renew(transport)
                pause = self.ttl / _RENEWALS
            except Exception as error:
                self._problem = _problem(error)
                if isinstance(error, NotFound | Cancelled | Denied | InvalidInput):
                    # It has ended: the lock was held since before the renewal, so the epoch is still the one refused.
                    self._valid_until = 0.0
                    break
                transport, pause = None, _PAUSE_SECONDS
            finally:
                self._lock.release()
        if transport is not None:
            transport.close()

    def __enter__(self) -> Self:
        self.keep()
        return self

    def _leave(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<atoll.Lease {self.number} of {self.function} on {self.device}>"


def _hold(report: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a report that an action on the lease names."""
    return {"lease": int(report["lease"]), "epoch": int(report["epoch"]), "holder": str(report["holder"])}


def _problem(error: Exception) -> AtollError:
    """An error of a renewal as an exception of the package. An answer that is no JSON, for example, is none."""
    if isinstance(error, AtollError):
        return error
    problem = InternalError(f"the renewal of the lease failed: {error!r}")
    problem.__cause__ = error
    return problem
