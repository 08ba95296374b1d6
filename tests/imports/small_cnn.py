"""A small convolutional network: model.onnx OUT"""
import sys, numpy as np, onnx
from onnx import helper as h, numpy_helper as nh, TensorProto as T
r=np.random.default_rng(11); init=[]
def c(n,*s):
    init.append(nh.from_array((r.standard_normal(s)/max(1,np.prod(s[1:]))**.5).astype(np.float32),n)); return n
nodes=[h.make_node("Conv",["x",c("w0",8,3,3,3),c("b0",8)],["c0"],pads=[1]*4),h.make_node("Relu",["c0"],["r0"]),
 h.make_node("MaxPool",["r0"],["p0"],kernel_shape=[2,2],strides=[2,2]),
 h.make_node("Conv",["p0",c("w1",8,8,1,1),c("b1",8)],["c1"]),h.make_node("Conv",["p0",c("w2",8,8,3,3),c("b2",8)],["c2"],pads=[1]*4),
 h.make_node("Concat",["c1","c2"],["k"],axis=1),h.make_node("Relu",["k"],["r1"]),
 h.make_node("GlobalAveragePool",["r1"],["g"]),h.make_node("Flatten",["g"],["f"]),h.make_node("Gemm",["f",c("w3",16,10),c("b3",10)],["y"]),h.make_node("Softmax",["y"],["p"])]
g=h.make_graph(nodes,"small_cnn",[h.make_tensor_value_info("x",T.FLOAT,[1,3,12,12])],[h.make_tensor_value_info("p",T.FLOAT,[1,10]),h.make_tensor_value_info("r1",T.FLOAT,[1,16,6,6])],init)
m=h.make_model(g,opset_imports=[h.make_opsetid("",17)],ir_version=8); onnx.checker.check_model(m); onnx.save(m,sys.argv[1])
