"""Checks of the client of a daemon with binary tensors, with a server that is played by this file."""

from __future__ import annotations

import contextlib
import http.server
import json
import struct
import threading
from collections.abc import Iterator

from machines import check, free_port

from atoll_ray.daemon import HEAD_BYTES, Daemon, DaemonError
from atoll_ray.tensor import Tensor

OUTPUT = {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}


class Server(http.server.BaseHTTPRequestHandler):
    """Doubles the first input, and does wrong things for functions with their names."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        size = int(self.headers[HEAD_BYTES])
        asked = json.loads(body[:size])
        check(asked["parameters"] == {"timeout": 7, "binary_data_output": True}, asked)
        numbers = struct.unpack("<2f", body[size : size + 8])
        check(len(body) == size + 8 * len(asked["inputs"]), "no other bytes")
        head = json.dumps({"outputs": [OUTPUT]}).encode()
        answer = head + struct.pack("<2f", *[2 * number for number in numbers])
        function = self.path.split("/")[3]
        if function == "hangs-up":
            return
        if function == "busy":
            answer = b'{"error": "too many requests"}'
        self.send_response(503 if function == "busy" else 200)
        if function != "no-head":
            self.send_header(HEAD_BYTES, str(len(head)))
        self.send_header("Content-Length", str(len(answer) + (function == "cut-off")))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served() -> Iterator[Daemon]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Daemon(f"http://127.0.0.1:{server.server_address[1]}", token="")
        finally:
            server.shutdown()


def failure(daemon: Daemon, function: str, inputs: dict[str, Tensor]) -> DaemonError:
    try:
        found = daemon.infer_tensors(function, inputs, {"timeout": 7}, 60.0)
    except DaemonError as error:
        return error
    raise AssertionError(f"{function} was answered: {found}")


def test_tensors_over_http() -> None:
    inputs = {
        "x": Tensor.from_bytes("FP32", (2,), struct.pack("<2f", 1.0, 2.0)),
        "b": Tensor.from_bytes("FP32", (1, 2), struct.pack("<2f", 3.0, 4.0)),
    }
    with served() as daemon:
        found = daemon.infer_tensors("double", inputs, {"timeout": 7}, 60.0)
        check(list(found) == ["y"] and struct.unpack("<2f", found["y"].data) == (2.0, 4.0), found)
        for function, status, says in [
            ("busy", 503, "too many requests"),
            ("no-head", 200, "outputs"),
            # The function may have run.
            ("cut-off", None, "no answer"),
            ("hangs-up", None, "no answer"),
        ]:
            error = failure(daemon, function, inputs)
            check((error.status, error.was_sent) == (status, True) and says in str(error), (function, error))
    error = failure(Daemon(f"http://127.0.0.1:{free_port()}"), "double", inputs)
    check((error.status, error.was_sent) == (None, False), "it has not begun")
