"""A client of a daemon's inference port: capacity, leases and inference. Uses only the standard library."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from .tensor import Tensor, decode, encode

#: The daemon of this machine, unless ``ATOLL_URL`` names another one.
DEFAULT_URL = "http://127.0.0.1:8000"

#: Largest answer in bytes: enough for a few hundred tensors.
ANSWER_BYTES_MAX = 256 << 20

#: The header with the size of the JSON part of a request or answer that has binary tensors.
HEAD_BYTES = "Inference-Header-Content-Length"


class DaemonError(Exception):
    """A daemon refused a request, or cannot be reached.

    ``status`` is the HTTP status, or ``None`` without an answer. If ``was_sent``, the daemon may have acted on it.
    """

    def __init__(self, message: str, status: int | None = None, was_sent: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.was_sent = was_sent

    @property
    def has_ended(self) -> bool:
        """Whether the lease has ended or belongs to another holder, so it can no longer be renewed."""
        return self.status in (404, 409)

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status is None or self.status >= 500


@dataclass(frozen=True)
class LeaseRequest:
    """A request for a lease. The daemon checks the values; ``docs/reference/http.md`` has their ranges and units."""

    function: str
    sm_partition: float
    quota_request: float
    quota_limit: float
    gpu_mem: int
    cls: str | None = None
    real_time_slots: int | None = None
    ttl_s: int = 15

    def body(self, request_id: str, holder: str) -> dict[str, Any]:
        """The body of the HTTP request."""
        body = {key: value for key, value in asdict(self).items() if value is not None and key != "cls"}
        if self.cls is not None:
            body["class"] = self.cls
        return body | {"request_id": request_id, "holder": holder}


@dataclass(frozen=True)
class Lease:
    """A granted lease."""

    lease: int
    epoch: int
    holder: str
    function: str
    instance: str
    device: str
    ttl_s: int

    @classmethod
    def of(cls, answer: Any) -> Lease:
        """The lease in an answer of the daemon."""
        try:
            return cls(**{name: answer[name] for name in cls.__dataclass_fields__})
        except (KeyError, TypeError) as error:
            raise DaemonError(f"the answer {str(answer)[:200]} is not a lease; is it a daemon of Atoll?") from error


class Daemon:
    """A daemon at the URL of its inference port. Each request opens a new connection."""

    def __init__(self, url: str | None = None, token: str | None = None, timeout_s: float = 10.0) -> None:
        self.url = (url or os.environ.get("ATOLL_URL") or DEFAULT_URL).rstrip("/")
        self.token = token if token is not None else os.environ.get("ATOLL_TOKEN")
        self.timeout_s = timeout_s

    def capacity(self) -> dict[str, Any]:
        """The capacity of each device, and the part that is promised."""
        found: dict[str, Any] = self.ask("GET", "/v2/capacity")
        return found

    def leases(self) -> list[dict[str, Any]]:
        """The leases of the tenant."""
        found: list[dict[str, Any]] = self.ask("GET", "/v2/leases")
        return found

    def loads(self) -> list[dict[str, Any]]:
        """The requests of each lease of the tenant: how many, and how long they took."""
        found: list[dict[str, Any]] = self.ask("GET", "/v2/leases/load")
        return found

    def profile(self, function: str) -> list[dict[str, Any]]:
        """The points of a function's stored profile; empty if there is none."""
        found: list[dict[str, Any]] = self.ask("GET", f"/v2/models/{function}/profile")["points"]
        return found

    def is_ready(self, function: str) -> bool:
        """Whether a function takes requests."""
        try:
            self.ask("GET", f"/v2/models/{function}/ready")
        except DaemonError as error:
            if error.status in (400, 404, 503):
                return False
            raise
        return True

    def grant(self, request: LeaseRequest, request_id: str, holder: str) -> Lease:
        """Requests a lease. A repetition with the same id gets the same lease."""
        return Lease.of(self.ask("POST", "/v2/leases", request.body(request_id, holder)))

    def renew(self, lease: Lease) -> Lease:
        """Extends a lease by its time to live."""
        return Lease.of(self.ask("POST", f"/v2/leases/{lease.lease}/renew", _hold(lease)))

    def release(self, lease: Lease) -> None:
        """Releases a lease."""
        self.ask("POST", f"/v2/leases/{lease.lease}/release", _hold(lease))

    def infer(self, function: str, body: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Runs a function on a request of the KServe v2 protocol."""
        answer: dict[str, Any] = self.ask("POST", f"/v2/models/{function}/infer", body, timeout_s)
        return answer

    def infer_tensors(
        self, function: str, inputs: Mapping[str, Tensor], parameters: Mapping[str, Any], timeout_s: float
    ) -> dict[str, Tensor]:
        """Runs a function on tensors, which are sent and answered in binary form."""
        head, parts = encode(inputs, parameters)
        headers = {"Content-Type": "application/octet-stream", HEAD_BYTES: str(len(head))}
        path = f"/v2/models/{function}/infer"
        answer, body = self._send("POST", path, [head, *parts], headers, timeout_s)
        if answer.status >= 300:
            self._refused_or(answer, body, path)
        try:
            return decode(body, int(answer.getheader(HEAD_BYTES, "")))
        except ValueError as error:
            start = body[:200].decode(errors="replace")
            raise DaemonError(f"the answer of {self.url}{path} {start!r}: {error}", answer.status) from error

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float | None = None) -> Any:
        """Sends a request and returns its JSON answer, or ``None`` if the answer is empty."""
        parts = [] if body is None else [json.dumps(body).encode()]
        headers = {"Content-Type": "application/json"}
        answer, text = self._send(method, path, parts, headers, timeout_s or self.timeout_s)
        return self._refused_or(answer, text, path)

    def _send(
        self,
        method: str,
        path: str,
        parts: Sequence[bytes | memoryview],
        headers: dict[str, str],
        timeout_s: float,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Sends a request, and returns the answer and its body."""
        until = time.monotonic() + timeout_s
        url = urlsplit(self.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise DaemonError(f"`{self.url}` is not the URL of a daemon, as in {DEFAULT_URL}", was_sent=False)
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)
        headers = headers | {"Content-Length": str(sum(memoryview(part).nbytes for part in parts))}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            try:
                connection.connect()
            except OSError as error:
                raise DaemonError(f"the daemon {self.url} cannot be reached: {error}", was_sent=False) from error
            # What is left of the limit is that of the answer.
            connection.sock.settimeout(max(until - time.monotonic(), 0.001))
            try:
                connection.request(method, url.path + path, iter(parts) if parts else None, headers)
                answer = connection.getresponse()
                text = answer.read(ANSWER_BYTES_MAX + 1)
            except (OSError, http.client.HTTPException) as error:
                raise DaemonError(f"no answer from {self.url}{path}: {error!r}") from error
        finally:
            connection.close()
        if len(text) > ANSWER_BYTES_MAX:
            raise DaemonError(f"the answer from {self.url}{path} has over {ANSWER_BYTES_MAX} bytes")
        # With a limit, `read` takes the end of the connection for that of the answer.
        if answer.length:
            raise DaemonError(f"no answer from {self.url}{path}: its last {answer.length} bytes are missing")
        return answer, text

    def _refused_or(self, answer: http.client.HTTPResponse, text: bytes, path: str) -> Any:
        """The JSON value of an answer. Raises ``DaemonError`` if the daemon refused, or if it is no such value."""
        try:
            value = json.loads(text) if text.strip() else None
        except ValueError:
            value = text[:200].decode(errors="replace")
        if answer.status >= 300:
            reason = value.get("error") if isinstance(value, dict) else value
            raise DaemonError(f"{self.url}{path}: {reason}", answer.status)
        if isinstance(value, str):
            raise DaemonError(f"the answer from {self.url}{path} is not of a daemon: {value}", answer.status)
        return value


def _hold(lease: Lease) -> dict[str, Any]:
    return {"epoch": lease.epoch, "holder": lease.holder}
