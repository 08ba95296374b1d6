"""FastAPI with ONNX Runtime for `atoll bench overhead --against fastapi`.

peer.py MODEL: answers requests of KServe v2 to the model, named null, on a free port, which it prints as HOST:PORT.
"""

import json
import socket
import sys

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import FastAPI, Request

TYPES = {"tensor(float)": "FP32", "tensor(int64)": "INT64", "tensor(uint8)": "UINT8"}
DTYPES = {"FP32": np.float32, "INT64": np.int64, "UINT8": np.uint8}

model = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
app = FastAPI()


def described(tensors):
    return [{"name": tensor.name, "datatype": TYPES[tensor.type], "shape": tensor.shape} for tensor in tensors]


@app.get("/v2/models/null")
async def metadata():
    inputs, outputs = described(model.get_inputs()), described(model.get_outputs())
    return {"name": "null", "versions": ["1"], "platform": "onnxruntime", "inputs": inputs, "outputs": outputs}


@app.post("/v2/models/null/infer")
async def infer(request: Request):
    body = await request.body()
    length = int(request.headers.get("inference-header-content-length", len(body)))
    feed, at = {}, length
    for tensor in json.loads(body[:length])["inputs"]:
        dtype, size = DTYPES[tensor["datatype"]], tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = np.array(tensor["data"], dtype)
        else:
            values, at = np.frombuffer(body[at : at + size], dtype), at + size
        feed[tensor["name"]] = values.reshape(tensor["shape"])
    answers = zip(described(model.get_outputs()), model.run(None, feed))
    outputs = [about | {"shape": list(value.shape), "data": value.ravel().tolist()} for about, value in answers]
    return {"model_name": "null", "model_version": "1", "outputs": outputs}


listener = socket.create_server(("127.0.0.1", 0))
print("%s:%d" % listener.getsockname(), flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
