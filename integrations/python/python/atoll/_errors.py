"""The exceptions. Their texts are those of the daemon or the compiler."""


class AtollError(Exception):
    """Something failed. Every exception of the package is a subclass."""


class InvalidInput(AtollError, ValueError):
    """The request is wrong: a type, a shape, a name or a parameter. Repeating it does not help."""


class NotFound(AtollError, LookupError):
    """There is no such model, function or file, or it belongs to another tenant."""


class Denied(AtollError):
    """The tenant may not do this, or could not be identified."""


class QuotaExceeded(AtollError):
    """The tenant has exhausted a limit."""


class Unavailable(AtollError):
    """The daemon is busy, stopping or not ready. The request may be repeated later."""


class DeadlineExceeded(AtollError, TimeoutError):
    """The deadline of the request passed."""


class Cancelled(AtollError):
    """The instance or lease of the request was removed while the request waited or ran."""


class InternalError(AtollError):
    """The daemon or its machine failed."""


class FunctionFailed(InternalError):
    """The function failed on the device. Over HTTP this is an `InternalError`."""


class ConnectionFailed(AtollError, ConnectionError):
    """No daemon answers, or the connection to it was lost or closed."""


class RingFull(AtollError):
    """All slots of a ring are in use, or a request is larger than its part of the arena."""


class CompileFailed(AtollError):
    """The compiler refused a model."""


def of_status(status: int, message: str, reason: str | None = None) -> AtollError:
    """The exception for a status of HTTP."""
    if status in (401, 403):
        return Denied(message)
    if status == 404:
        return NotFound(message)
    if status in (409, 410):
        return Cancelled(message)
    if status == 503:
        return QuotaExceeded(message) if reason == "invocations" else Unavailable(message)
    if status == 504:
        return DeadlineExceeded(message)
    return InvalidInput(message) if 400 <= status < 500 else InternalError(message)
