"""Compiles models and runs them in a daemon of their own, over HTTP, with tensors in binary form."""

import ctypes
import http.client
import json
import os
import pathlib
import signal
import subprocess
import time

import ml_dtypes
import numpy as np

# Time limits, in seconds. Everything here is small.
READY = 60
COMPILE = 60
REQUEST = 60

PLAIN = {
    "BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "FP16": np.float16, "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "FP64": np.float64,
}
NAMES = {np.dtype(dtype): name for name, dtype in PLAIN.items()}


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_parent():
    """A daemon whose worker is killed must not keep the GPU."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Refused(Exception):
    """The compiler refused a model."""


class Failed(Exception):
    """A step failed that should not."""


def compile_model(atoll, onnx, bundle, target, flags=(), cache=None):
    """Compiles a model for one target."""
    environment = dict(os.environ, ATOLL_LOG="error", **({"XDG_CACHE_HOME": str(cache)} if cache else {}))
    command = [atoll, "compile", onnx, "-o", bundle, "--target", target, *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=COMPILE, env=environment)
    if done.returncode:
        message = done.stderr.strip()
        # The status says whose mistake it is: 2 is the model's.
        raise (Refused if done.returncode == 2 else Failed)(message.removeprefix("error: "))


def to_wire(array):
    """The type and the bytes of an array for a client. Narrow numbers take one byte each."""
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1)]
        return "BYTES", b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    if array.dtype not in NAMES:
        name = array.dtype.name
        if name.startswith(("int", "uint")):
            array = array.astype(np.uint8 if name.startswith("u") else np.int8)
        else:
            array = np.ascontiguousarray(array).view(np.uint8)
    return NAMES[array.dtype], np.ascontiguousarray(array).tobytes()


def from_wire(datatype, shape, data, like=None):
    """The array of an answer; `like` is the type of the model where clients see another one."""
    if datatype == "BYTES":
        texts, at = [], 0
        while at < len(data):
            size = int.from_bytes(data[at:at + 4], "little")
            texts.append(data[at + 4:at + 4 + size])
            at += 4 + size
        return np.array(texts, dtype=object).reshape(shape)
    array = np.frombuffer(data, PLAIN[datatype]).reshape(shape)
    if like is None or like in NAMES or like.kind in "OSU":
        return array
    is_number = like.name.startswith(("int", "uint"))
    return array.astype(like) if is_number else np.ascontiguousarray(array).view(like)


class Daemon:
    """`atoll serve` with an empty repository. Starts again after a crash."""

    def __init__(self, atoll, device, folder, memory="512M"):
        self.atoll, self.device, self.memory, self.process = atoll, device, memory, None
        self.folder = pathlib.Path(folder)
        self.repository = self.folder / "repository"
        self.repository.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self):
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        command = [
            self.atoll, "serve", "--model-repository", self.repository, "--model-control-mode", "explicit",
            "--http-port", "0", "--metrics-port", "0", "--no-grpc", "--no-control", "--drain-seconds", "1",
            "--device", self.device, "--memory-limit", self.memory, "--ready-file", ready,
        ]
        places = {name: str(self.folder) for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")}
        log = open(self.folder / "daemon.log", "ab")
        environment = dict(os.environ, ATOLL_LOG="warn", **places)
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
            preexec_fn=end_with_parent,
        )
        log.close()
        end = time.monotonic() + READY
        while not (ready.exists() and "http " in ready.read_text()):
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise Failed(f"the daemon did not start: {self.last_words()}")
            time.sleep(0.02)
        address = next(line for line in ready.read_text().splitlines() if line.startswith("http ")).split()[1]
        self.connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=REQUEST)

    def last_words(self):
        return (self.folder / "daemon.log").read_text(errors="replace")[-400:]

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()

    def request(self, method, path, body=None, headers=None):
        """The body of an answer, and its headers."""
        if self.process.poll() is not None:
            self.start()
        try:
            self.connection.request(method, path, body, headers or {})
            answer = self.connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            time.sleep(0.2)
            ended = self.process.poll() is not None
            raise Failed(f"{path}: {error!r}" + (f"; the daemon ended: {self.last_words()}" if ended else "")) from None
        if answer.status != 200:
            raise Failed(f"{path.rsplit('/', 1)[-1]}: status {answer.status}: {data.decode(errors='replace')}")
        return data, answer.headers

    def load(self, name):
        """Loads `name.kg` of the repository, and returns its inputs and outputs."""
        self.request("POST", f"/v2/repository/models/{name}/load", b"{}")
        return json.loads(self.request("GET", f"/v2/models/{name}")[0])

    def unload(self, name):
        self.request("POST", f"/v2/repository/models/{name}/unload", b"{}")

    def infer(self, name, metadata, inputs, likes=None):
        """The outputs for inputs in the model's order. `likes` are types of outputs in the model."""
        described, parts = [], []
        for spec, array in zip(metadata["inputs"], inputs):
            datatype, data = to_wire(array)
            parts.append(data)
            described.append({
                "name": spec["name"], "datatype": datatype, "shape": list(np.shape(array)),
                "parameters": {"binary_data_size": len(data)},
            })
        outputs = [{"name": o["name"], "parameters": {"binary_data": True}} for o in metadata["outputs"]]
        header = json.dumps({"inputs": described, "outputs": outputs}).encode()
        headers = {
            "Inference-Header-Content-Length": str(len(header)), "Content-Type": "application/octet-stream",
        }
        data, headers = self.request("POST", f"/v2/models/{name}/infer", header + b"".join(parts), headers)
        size = int(headers["Inference-Header-Content-Length"])
        answer, at, arrays = json.loads(data[:size]), size, []
        for index, spec in enumerate(answer["outputs"]):
            end = at + spec["parameters"]["binary_data_size"]
            like = likes[index] if likes and index < len(likes) else None
            arrays.append(from_wire(spec["datatype"], spec["shape"], data[at:end], like))
            at = end
        return arrays
