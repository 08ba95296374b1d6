"""A connection over HTTP, with tensors in the binary part of bodies."""

import http.client
import json
import os
import select
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from ._errors import AtollError, ConnectionFailed, DeadlineExceeded, InvalidInput, of_status
from ._tensors import Array, Encoded, decode

_LENGTH = "Inference-Header-Content-Length"

# Largest body that is copied, to send it with one system call.
_JOINED_MAX = 1 << 16


class Http:
    """A connection to the HTTP port. Threads that share it wait for each other."""

    def __init__(self, url: str, token: str | None, timeout: float | None, tls: ssl.SSLContext | None):
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"`{url}` is no address like http://localhost:8000")
        self.address = f"{parts.scheme}://{parts.netloc}"
        # Its own thread can lock it again: a signal handler must not wait for the request that it interrupts.
        self._lock = threading.RLock()
        self._is_busy = False
        # Whether a signal handler has closed the client during the running request.
        self._is_aborted = False
        self._is_interrupted = False
        self._headers = {}
        token = token or os.environ.get("ATOLL_TOKEN")
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        if parts.scheme == "https":
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port or 443, timeout=timeout, context=tls or ssl.create_default_context()
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 8000, timeout=timeout)

    def close(self) -> None:
        """Closes the connection. The next request opens another one.

        In a signal handler during a request of this thread, ends that request.
        """
        with self._lock:
            if self._is_busy:
                self._is_aborted = True
                self._shut_down()
            else:
                self._connection.close()

    def interrupt(self) -> None:
        """Ends the request of another thread, and refuses all later ones."""
        self._is_interrupted = True
        self._shut_down()

    def _shut_down(self) -> None:
        connected = self._connection.sock
        if connected is not None:
            try:
                # Below TLS, whose state belongs to the running request.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)
            except OSError:
                # It is closed already.
                pass

    def infer(
        self,
        model: str,
        version: str,
        inputs: Sequence[Encoded],
        outputs: Sequence[str] | None,
        id: str,
        parameters: Mapping[str, Any],
    ) -> dict[str, Array]:
        """Runs a model. Elements of inputs are sent, and those of outputs received, in place."""
        tensors = [
            {
                "name": name,
                "datatype": datatype,
                "shape": shape,
                "parameters": {"binary_data_size": elements.nbytes},
            }
            for name, datatype, shape, elements in inputs
        ]
        request: dict[str, Any] = {"inputs": tensors, "parameters": {**parameters, "binary_data_output": True}}
        if id:
            request["id"] = id
        if outputs:
            request["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        head = json.dumps(request).encode()
        headers = {_LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
        path = f"/v2/models/{quote(model, safe='')}"
        if version:
            path += f"/versions/{quote(version, safe='')}"
        body: list[bytes | memoryview] = [head, *(elements for _, _, _, elements in inputs)]
        answer, elements = self._call("POST", f"{path}/infer", body, headers)
        return {
            output["name"]: decode(output["datatype"], output["shape"], content)
            for output, content in zip(json.loads(answer)["outputs"], elements, strict=True)
        }

    def json(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request with a body of JSON, and returns that of its answer."""
        parts = [] if body is None else [json.dumps(body).encode()]
        answer, _ = self._call(method, path, parts, {"Content-Type": "application/json"})
        return json.loads(answer) if answer else None

    def _call(
        self, method: str, path: str, body: Sequence[bytes | memoryview], headers: Mapping[str, str]
    ) -> tuple[bytearray, list[bytearray]]:
        """Sends a request. Returns the body of the answer, and the elements of the outputs behind it."""
        length = sum(len(part) for part in body)
        if length <= _JOINED_MAX:
            body = [b"".join(body)]
        headers = {**self._headers, **headers, "Content-Length": str(length)}
        with self._lock:
            if self._is_busy:
                message = "the client is in use by this thread; a signal handler can only close or interrupt it"
                raise InvalidInput(message)
            try:
                self._is_busy = True
                status, answer, elements = self._exchange(method, path, body, headers)
            finally:
                is_aborted, self._is_aborted, self._is_busy = self._is_aborted, False, False
                if is_aborted:
                    self._connection.close()
        if status != 200:
            raise _failure(status, answer)
        return answer, elements

    def _exchange(
        self, method: str, path: str, body: Sequence[bytes | memoryview], headers: Mapping[str, str]
    ) -> tuple[int, bytearray, list[bytearray]]:
        """Sends a request. Returns the status of the answer, its body, and the elements of the outputs behind it."""
        try:
            self._close_if_ended()
            if self._connection.sock is None:
                self._connection.connect()
            # After `connect`, so that `interrupt` and `close` have either seen the socket or set this before.
            if self._is_interrupted or self._is_aborted:
                raise ConnectionAbortedError
            self._connection.request(method, path, iter(body), headers)
            response = self._connection.getresponse()
            return response.status, *_received(response)
        except TimeoutError as error:
            self._connection.close()
            raise DeadlineExceeded(f"no answer from {self.address} in time") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if self._is_interrupted or self._is_aborted:
                raise ConnectionFailed("the request was interrupted: the client was closed or interrupted") from error
            message = f"the connection to {self.address} failed: {error}; is `atoll serve` running?"
            raise ConnectionFailed(message) from error
        except BaseException:
            # Ctrl-C, for example: the rest of the answer would be taken for that of the next request.
            self._connection.close()
            raise

    def _close_if_ended(self) -> None:
        """Closes the connection if the daemon did so, so that no request is sent twice."""
        if self._connection.sock is not None:
            poll = select.poll()
            poll.register(self._connection.sock, select.POLLIN)
            if poll.poll(0):
                self._connection.close()


def _received(response: http.client.HTTPResponse) -> tuple[bytearray, list[bytearray]]:
    """The body of an answer. Each tensor behind its JSON has memory of its own."""
    before = response.getheader(_LENGTH)
    if response.status != 200 or before is None:
        return bytearray(response.read()), []
    answer = _read(response, int(before))
    outputs = json.loads(answer)["outputs"]
    elements = [_read(response, output["parameters"]["binary_data_size"]) for output in outputs]
    # Marks the end of the answer, so that the connection can be used again.
    response.read()
    return answer, elements


def _read(response: http.client.HTTPResponse, size: int) -> bytearray:
    content = bytearray(size)
    rest = memoryview(content)
    while rest:
        count = response.readinto(rest)
        if count == 0:
            raise http.client.IncompleteRead(b"", len(rest))
        rest = rest[count:]
    return content


def _failure(status: int, body: bytearray) -> AtollError:
    try:
        content = json.loads(body)
        return of_status(status, content["error"], content.get("reason"))
    except (ValueError, KeyError, TypeError):
        return of_status(status, body.decode(errors="replace") or f"status {status}")
