#!/usr/bin/env python3
"""Compiles an ONNX model with TVM for NVIDIA GPUs and writes a folder for `atoll import`. Needs no GPU.

    from_tvm.py squeezenet.onnx -o squeezenet [--arch 80] [--name NAME]

TVM (apache-tvm 0.27) imports, fuses and schedules the model and writes CUDA C, which NVRTC compiles to PTX. The order of launches is that of TVM's calls;
grids and blocks are those of its host code. To export a module that your own program compiled up to `call_tir`, call `export`.
"""

import argparse

import nvrtc
import onnx
import tvm
from manifest import Manifest, dtype_of, raw
from tvm import relax, tirx
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import dlight as dl
from tvm.target import Target
from tvm.tirx.build import split_host_device_mods

SCALARS = {"bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q", "float16": "e", "float32": "f", "float64": "d"}
AXES = {"blockIdx.x": ("grid", 0), "blockIdx.y": ("grid", 1), "blockIdx.z": ("grid", 2), "threadIdx.x": ("block", 0), "threadIdx.y": ("block", 1), "threadIdx.z": ("block", 2)}
DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"


def target_of(arch):
    """A GPU with the smallest limits of its generation."""
    device = {"kind": "cuda", "arch": f"sm_{arch}", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
    return Target(device, host={"kind": "c"})


def with_zeros(model):
    """The model with explicit zeros where its writer omitted them. TVM treats an omitted zero as an attribute without a value."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.INT:
                attribute.i = attribute.i
            elif attribute.type == onnx.AttributeProto.FLOAT:
                attribute.f = attribute.f
    return model


def compiled(model, target):
    """The model as calls of scheduled kernels."""
    mod = from_onnx(model, keep_params_in_input=False)
    t = relax.transform
    rules = [dl.gpu.Matmul(), dl.gpu.GEMV(), dl.gpu.Reduction(), dl.gpu.GeneralReduction(), dl.gpu.Fallback()]
    with target, tvm.transform.PassContext(opt_level=3):
        passes = [t.LegalizeOps(), t.AnnotateTIROpPattern(), t.FoldConstant(), t.FuseOps(), t.FuseTIR(), t.DeadCodeElimination()]
        mod = tvm.transform.Sequential([*passes, dl.ApplyDefaultSchedule(*rules), t.CanonicalizeBindings()])(mod)
    return mod


@tvm.instrument.pass_instrument
class AfterSplit:
    """Keeps a copy of the module at the point where kernels are separate functions that the host calls."""

    def __init__(self):
        self.module = None

    def run_after_pass(self, mod, info):
        if info.name.endswith("SplitHostDevice"):
            self.module = mod


class Exporter:
    """A Relax function whose bindings are calls of TIR functions, as a manifest."""

    def __init__(self, mod, target, manifest):
        self.mod, self.target, self.manifest = mod, target, manifest
        # The value of a Relax variable: the name of a buffer, or a tuple of names.
        self.values = {}
        self.constants, self.lowered = {}, {}

    def export(self, name, inputs, outputs, arch):
        """Writes the function `name`; `inputs` and `outputs` are the names of its inputs and outputs."""
        function = self.mod[name]
        if len(inputs) != len(function.params):
            raise SystemExit(f"{name} takes {len(function.params)} inputs, {len(inputs)} names are there")
        for own, parameter in zip(inputs, function.params):
            self.buffer(own, "input", parameter.ty)
            self.values[parameter] = own
        bindings = [binding for block in function.body.blocks for binding in block.bindings]
        self.compile(bindings, arch)
        for binding in bindings:
            self.values[binding.var] = self.value(binding.var, binding.value)
        result = self.atom(function.body.body)
        self.outputs(result if isinstance(result, tuple) else (result,), outputs)

    def buffer(self, name, kind, ty):
        self.manifest.buffer(name, kind, dtype_of(ty.dtype), shape_of(ty))

    def compile(self, bindings, arch):
        """The kernels of all called functions. Kernels with booleans are in a separate file, without vectors: TVM's CUDA C uses two bytes for
        each element of a vector of booleans, but buffers have one."""
        names = [call.args[0].name_hint for call in map(lambda b: b.value, bindings) if is_call(call, "relax.call_tir")]
        names = list(dict.fromkeys(names))
        with_booleans = [name for name in names if '"bool"' in self.mod[name].script()]
        self.compile_group([name for name in names if name not in with_booleans], arch, "vectors", {})
        self.compile_group(with_booleans, arch, "booleans", {"tirx.disable_vectorize": True})

    def compile_group(self, names, arch, file, config):
        if not names:
            return
        functions = {tvm.ir.GlobalVar(n): self.mod[n].with_attr("global_symbol", n) for n in names}
        seen = AfterSplit()
        with self.target, tvm.transform.PassContext(opt_level=3, instruments=[seen], config=config):
            module = tirx.transform.BindTarget(self.target)(tvm.IRModule(functions))
            pipeline, _, finalize = tirx.get_default_tir_pipeline(self.target)
            _, device = split_host_device_mods(pipeline(module))
            sources = [tirx_source(finalize()(module), target) for target, module in device.items()]
        self.lowered |= {var.name_hint: function for var, function in seen.module.functions.items()}
        for number, source in enumerate(sources):
            self.manifest.ptx(f"kernels/{file}_{number}.ptx", nvrtc.ptx(source, arch))

    def value(self, var, expr):
        """The value of an expression. A call adds launches."""
        if is_call(expr, "relax.call_tir"):
            return self.call(var, expr)
        if isinstance(expr, relax.TupleGetItem):
            return self.atom(expr.tuple_value)[expr.index]
        return self.atom(expr)

    def atom(self, expr):
        if isinstance(expr, relax.Var):
            return self.values[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self.atom(field) for field in expr.fields)
        if isinstance(expr, tvm.ir.GenericConst):
            return self.constant(expr)
        raise SystemExit(f"what TVM left in the model is no call of a kernel: {expr}")

    def constant(self, constant):
        array = constant.value.numpy()
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = f"constant_{len(self.constants)}"
            self.manifest.constant(self.constants[key], array)
        return self.constants[key]

    def call(self, var, call):
        if len(call.args) > 2:
            raise SystemExit(f"{call.args[0].name_hint} takes sizes that are known only later; export a model with fixed sizes")
        arguments = [self.atom(argument) for argument in call.args[1].fields]
        types = call.ty_args[0]
        many = isinstance(types, relax.TupleType)
        results = []
        for index, ty in enumerate(types.fields if many else [types]):
            name = f"{var.name}_{index}" if many else var.name
            name = name if name not in self.manifest.buffers else f"{name}_{len(self.manifest.buffers)}"
            self.buffer(name, "temp", ty)
            results.append(name)
        self.launches(call.args[0].name_hint, arguments + results)
        return tuple(results) if many else results[0]

    def launches(self, name, arguments):
        """The launches of a TIR function, with buffers for what it allocates between them."""
        host = self.lowered[name]
        places = dict(zip(host.params, arguments, strict=True))
        calls, declared = [], []
        visit_statements(name, host.body, calls, declared)
        for statement in declared:
            buffer = statement.buffer
            if isinstance(statement, tirx.AllocBuffer):
                own = f"{name}_{buffer.name}_{len(self.manifest.buffers)}"
                self.manifest.buffer(own, "temp", dtype_of(buffer.dtype), [number(d) for d in buffer.shape])
                places[buffer] = own
            else:
                places[buffer] = self.argument(statement.data, places)
        if not calls:
            raise SystemExit(f"{name} launches no kernel")
        for call in calls:
            self.launch(call, places)

    def launch(self, call, places):
        kernel = str(call.args[0].value)
        axes = [str(axis) for axis in self.lowered[kernel].attrs["tirx.kernel_launch_params"]]
        arguments = list(call.args[1:])
        extents = arguments[len(arguments) - len(axes) :]
        shape, shared = {"grid": [1, 1, 1], "block": [1, 1, 1]}, 0
        for axis, extent in zip(axes, extents):
            if axis == DYNAMIC_SHARED:
                shared = number(extent)
            elif axis in AXES:
                which, at = AXES[axis]
                shape[which][at] = number(extent)
            else:
                raise SystemExit(f"{kernel} is launched with {axis}, which is not exported")
        given = [self.argument(a, places) for a in arguments[: len(arguments) - len(axes)]]
        self.manifest.launch(kernel, shape["grid"], shape["block"], given, shared)

    def argument(self, argument, places):
        if isinstance(argument, tvm.ir.Call) and len(argument.args) == 1 and argument.args[0] in places:
            return places[argument.args[0]]
        if isinstance(argument, (tirx.IntImm, tirx.FloatImm)):
            return raw(SCALARS[str(argument.dtype)], argument.value)
        raise SystemExit(f"a kernel is given {argument}, which is neither a buffer nor a number")

    def outputs(self, results, names):
        """Makes results outputs of the function. A result that is already an input, a constant or another output is copied."""
        if len(results) != len(names):
            raise SystemExit(f"{len(results)} results, and {len(names)} names for them")
        renamed = {}
        for buffer, name in zip(results, names):
            spec = self.manifest.buffers[buffer]
            if spec["kind"] == "temp" and buffer not in renamed:
                renamed[buffer] = name
            else:
                self.manifest.buffers[name] = spec | {"kind": "output"}
                self.manifest.buffers[name].pop("file", None)
                self.manifest.copy(renamed.get(buffer, buffer), name)
        self.rename(renamed)

    def rename(self, renamed):
        taken = [name for name in renamed.values() if name in self.manifest.buffers and name not in renamed]
        if taken:
            raise SystemExit(f"an output has the name of another buffer: {', '.join(taken)}")
        m = self.manifest
        m.buffers = {renamed.get(name, name): spec | ({"kind": "output"} if name in renamed else {}) for name, spec in m.buffers.items()}
        for step in m.steps:
            step.update({"args": [renamed.get(a, a) if isinstance(a, str) else a for a in step["args"]]} if "args" in step else {})


def visit_statements(name, statement, calls, declared):
    """Records the launches in a host function, and the buffers that it allocates or renames for them."""
    if isinstance(statement, tirx.SeqStmt):
        for inner in statement.seq:
            visit_statements(name, inner, calls, declared)
    elif isinstance(statement, tirx.AttrStmt):
        visit_statements(name, statement.body, calls, declared)
    elif isinstance(statement, (tirx.AllocBuffer, tirx.DeclBuffer)):
        declared.append(statement)
    elif isinstance(statement, tirx.Evaluate) and is_launch(statement.value):
        calls.append(statement.value)
    elif not is_constant(statement):
        raise SystemExit(f"the host's part of {name} does more than launch kernels: {statement}")


def is_launch(expr):
    return isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "").endswith("call_ffi_kernel")


def is_constant(statement):
    return isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tirx.IntImm)


def tirx_source(module, target):
    """The CUDA C of a device module."""
    return tvm.get_global_func(f"target.build.{target.kind.name}")(module, target).inspect_source()


def is_call(expr, name):
    return isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == name


def shape_of(ty):
    shape = getattr(ty, "shape", None)
    if shape is None or not isinstance(shape, relax.ShapeExpr):
        raise SystemExit(f"a tensor has no known shape: {ty}")
    return [number(d) for d in shape.values]


def number(expr):
    if isinstance(expr, (int, tirx.IntImm)):
        return int(expr)
    raise SystemExit(f"the size {expr} is known only later; export a model with fixed sizes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("-o", "--output", required=True, help="the folder to write")
    parser.add_argument("--arch", type=int, default=80, help="compute capability: 80 is 8.0 [80]")
    parser.add_argument("--name", help="of the function [the ONNX file's]")
    args = parser.parse_args()
    model = onnx.load(args.model)
    target = target_of(args.arch)
    constants = {initializer.name for initializer in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in constants]
    name = args.name or args.model.rsplit("/", 1)[-1].removesuffix(".onnx")
    manifest = Manifest(name, f"tvm {tvm.__version__}, {nvrtc.version()}")
    exporter = Exporter(compiled(with_zeros(model), target), target, manifest)
    exporter.export("main", inputs, [value.name for value in model.graph.output], args.arch)
    manifest.write(args.output)


if __name__ == "__main__":
    main()
