"""The exceptions. Their texts are those of the daemon or the compiler."""

from typing import ClassVar


class AtollError(Exception):
    """Something failed. Every exception of the package is a subclass."""

    code: ClassVar[str] = ""
    """Kind of a refusal, as in the control protocol; empty if no daemon refused anything."""
    retryable: ClassVar[bool] = False
    """Whether the same request may succeed later. Such a request did not run."""

    def __init__(self, message: str = "", status: int | None = None, reason: str | None = None):
        super().__init__(message)
        self.status = status
        """Status of the answer over HTTP."""
        self.reason = reason
        """More about the status, as in `no_credentials`; the reference of HTTP lists all reasons."""


class InvalidInput(AtollError, ValueError):
    """The request is wrong: a type, a shape, a name or a parameter. Repeating it does not help."""

    code = "bad-request"


class NotFound(AtollError, LookupError):
    """There is no such model, function or file, or it belongs to another tenant."""

    code = "not-found"


class Denied(AtollError):
    """The tenant may not do this, or could not be identified."""

    code = "denied"


class QuotaExceeded(AtollError):
    """The tenant has exhausted a limit."""

    code = "quota"
    retryable = True


class Unavailable(AtollError):
    """The daemon is busy, stopping or not ready. The request may be repeated later."""

    code = "busy"
    retryable = True


class DeadlineExceeded(AtollError, TimeoutError):
    """The deadline of the request passed."""

    code = "deadline"


class Cancelled(AtollError):
    """The instance or lease of the request was removed while the request waited or ran."""


class InternalError(AtollError):
    """The daemon or its machine failed."""

    code = "daemon"


class FunctionFailed(InternalError):
    """The function failed on the device. Over HTTP this is an `InternalError`."""

    code = "function"


class ConnectionFailed(AtollError, ConnectionError):
    """No daemon answers, or the connection to it was lost or closed."""


class RingFull(AtollError):
    """All slots of a ring are in use, or a request is larger than its part of the arena."""


class CompileFailed(AtollError):
    """The compiler refused a model."""


_KINDS: tuple[type[AtollError], ...] = (
    InvalidInput,
    NotFound,
    Denied,
    QuotaExceeded,
    Unavailable,
    DeadlineExceeded,
    InternalError,
    FunctionFailed,
)


def of_kind(kind: str, message: str) -> AtollError:
    """The exception for a kind of refusal."""
    return next((each for each in _KINDS if each.code == kind), InternalError)(message)


def of_status(status: int, message: str, reason: str | None = None) -> AtollError:
    """The exception for a status of HTTP."""
    return _class_of(status, reason)(message, status, reason)


def _class_of(status: int, reason: str | None) -> type[AtollError]:
    if status in (401, 403):
        return Denied
    if status == 404:
        return NotFound
    if status in (409, 410):
        return Cancelled
    if status == 503:
        return QuotaExceeded if reason == "invocations" else Unavailable
    if status == 504:
        return DeadlineExceeded
    return InvalidInput if 400 <= status < 500 else InternalError
