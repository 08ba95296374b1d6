"""Masked products, as attention has them, that share a vector of booleans: small_mask.py FILE.onnx"""

import sys

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

constants = [nh.from_array(np.float32(0), "zero"), nh.from_array(np.float32(-9), "low"), nh.from_array(np.array([1, 2]), "axes"), nh.from_array(np.array([1, 2, 32, 32]), "shape")]
nodes = [
    h.make_node("Cast", ["mask"], ["m"], to=T.FLOAT),
    h.make_node("Equal", ["m", "zero"], ["off"]),
    h.make_node("Unsqueeze", ["off", "axes"], ["off4"]),
    h.make_node("Expand", ["off4", "shape"], ["wide"]),
    h.make_node("MatMul", ["q", "k"], ["s"]),
    h.make_node("Where", ["wide", "low", "s"], ["w"]),
    h.make_node("MatMul", ["w", "t"], ["s2"]),
    h.make_node("Where", ["wide", "low", "s2"], ["r"]),
    h.make_node("Softmax", ["w"], ["p"], axis=-1),
]
inputs = [h.make_tensor_value_info("mask", T.INT64, [1, 32]), h.make_tensor_value_info("q", T.FLOAT, [1, 2, 32, 16]), h.make_tensor_value_info("k", T.FLOAT, [1, 2, 16, 32]), h.make_tensor_value_info("t", T.FLOAT, [1, 2, 32, 32])]
outputs = [h.make_tensor_value_info(name, T.FLOAT, [1, 2, 32, 32]) for name in ("p", "r")]
graph = h.make_graph(nodes, "small_mask", inputs, outputs, constants)
model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
onnx.save(model, sys.argv[1])
