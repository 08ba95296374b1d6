#!/usr/bin/env python3
"""Compiles an ONNX model with IREE for NVIDIA GPUs and writes a folder for `atoll import`. Needs no GPU.

    from_iree.py model.onnx -o FOLDER [--arch 80] [--name NAME]

IREE (iree-base-compiler 3.13) writes PTX for all dispatches. The order of launches, their grids and their bindings come from its HAL program, read by IREE's
parser; blocks and shared memory come from the exports of its executables.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from iree.compiler import ir
from iree.compiler import version as iree_version
from manifest import Manifest, raw

ELEMENTS = {"f32": "f32", "f16": "f16", "bf16": "bf16", "f64": "f64", "i1": "bool", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64"}
PIECE = re.compile(r'dense(_resource)?<("[^"]*"|[^">]*)> : ((?:vector|tensor)<[^>]*>)')
# Operations that only prepare others and can be skipped.
HARMLESS = re.compile(
    r"arith\.constant|util\.(global\.load|return|null|align)|hal\.(device\.(allocator|queue\.(alloca|dealloca))|fence\.|allocator\.|buffer\.assert|buffer_view\.|"
    r"memory_type|buffer_usage|element_type|encoding_type|command_buffer\.(create|execution_barrier|finalize)|executable\.lookup)"
)


def refuse(reason):
    raise SystemExit(f"this module cannot be exported: {reason}")


def run(program, *words):
    path = pathlib.Path(sys.executable).parent / program
    done = subprocess.run([str(path), *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{program} does not take the model:\n{done.stderr[:4000]}")


def compiled(model, arch, folder):
    """The program with the exports of its executables, the one with its launches, and the PTX."""
    run("iree-import-onnx", model, "--opset-version", 17, "-o", folder / "m.mlir")
    flags = ["--iree-hal-target-device=cuda", f"--iree-cuda-target=sm_{arch}"]
    run("iree-compile", folder / "m.mlir", *flags, "--compile-to=executable-targets", "-o", folder / "exports.mlir")
    run("iree-compile", folder / "m.mlir", *flags, "--compile-to=hal", f"--iree-hal-dump-executable-files-to={folder}", "-o", folder / "hal.mlir")
    return (folder / "exports.mlir").read_text(), (folder / "hal.mlir").read_text(), [path.read_text() for path in sorted(folder.glob("*.ptx"))]


def operations(operation):
    """All operations inside an operation, in order."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from operations(inner.operation)


def attribute(operation, name):
    return operation.attributes[name]


def symbol(operation, name="sym_name"):
    return str(attribute(operation, name)).strip('"@')


def producer(value):
    owner = value.owner
    return owner if not isinstance(owner, ir.Block) else None


def number(value):
    made = producer(value)
    if made is None or made.name != "arith.constant":
        refuse("a size is known only when it runs; fix the model's dimensions")
    return int(str(attribute(made, "value")).split(" : ")[0].replace("false", "0").replace("true", "1"))


def shapes_of(text):
    """Threads and bytes of dynamic shared memory of each kernel, by its name in PTX."""
    shapes = {}
    with ir.Context():
        for operation in operations(ir.Module.parse(text).operation):
            if operation.name == "hal.executable.export":
                # The printer writes these behind the region: <workgroup_size = [32 : index, 1 : index, 1 : index], workgroup_local_memory = 8>
                words = str(operation).rsplit("} <", 1)[-1]
                threads = re.search(r"workgroup_size = \[([^\]]*)\]", words)
                shared = re.search(r"workgroup_local_memory = (\d+)", words)
                if threads is None:
                    refuse(f"{symbol(operation)} has no block size")
                block = [int(n.split(":")[0]) for n in threads[1].split(",")]
                shapes[entry_of(symbol(operation))] = (block, int(shared[1]) if shared else 0)
    return shapes


def entry_of(name):
    """A name as the PTX back end writes it."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def constant_bytes(text, resources):
    """The bytes of `#util.composite<…>` or of one dense attribute."""
    parts = []
    for resource, content, ty in PIECE.findall(text):
        if resource:
            parts.append(resources[content.strip('"')])
        else:
            # NumPy can read the elements of tensors only.
            dense = ir.DenseElementsAttr(ir.Attribute.parse(f"dense<{content}> : {ty.replace('vector', 'tensor')}"))
            parts.append(np.array(dense).tobytes())
    return b"".join(parts)


def resources_of(text):
    """The blobs after the module: four bytes of alignment, then the elements."""
    tail = text[text.index("{-#") :] if "{-#" in text else ""
    return {name: bytes.fromhex(digits)[4:] for name, digits in re.findall(r'^\s*([\w.$-]+): "0x([0-9A-Fa-f]+)"', tail, re.M)}


class Exporter:
    def __init__(self, text, shapes, manifest):
        self.manifest, self.shapes, self.resources = manifest, shapes, resources_of(text)
        self.functions, self.constants, self.commands, self.sizes = {}, {}, {}, {}

    def export(self, text, inputs, outputs):
        with ir.Context():
            module = ir.Module.parse(text)
            for operation in module.body.operations:
                operation = operation.operation
                if operation.name == "util.func":
                    self.functions[symbol(operation)] = operation
                elif operation.name == "util.initializer":
                    self.initializer(operation)
            entry = [f for name, f in self.functions.items() if name.endswith("$async")]
            if len(entry) != 1:
                refuse(f"it has {len(entry)} entry points")
            self.function(entry[0], inputs, outputs)

    def initializer(self, operation):
        """Records which globals hold constants, and which one holds the command buffer."""
        content, inside = None, list(operations(operation))
        for op in inside:
            if op.name == "util.buffer.constant":
                content = str(attribute(op, "value"))
            elif op.name == "util.call":
                content = symbol(op, "callee")
            elif "queue.execute" in op.name or "queue.dispatch" in op.name:
                refuse("it computes constants on the device when it is loaded")
        for op in inside:
            if op.name == "util.global.store" and content is not None:
                ty, name = str(op.operands[0].type), symbol(op, "global")
                if ty == "!hal.command_buffer":
                    self.commands[name] = content
                elif ty == "!hal.buffer":
                    data = np.frombuffer(constant_bytes(content, self.resources), np.uint8)
                    self.manifest.constant(name, data)
                    self.sizes[name] = data.size

    def function(self, function, inputs, outputs):
        self.arguments = dict(enumerate(inputs))
        body = function.regions[0].blocks[0]
        names, executed = {}, None
        for op in map(lambda o: o.operation, body.operations):
            if op.name == "hal.device.queue.execute.indirect":
                if executed is not None:
                    refuse("it submits more than one command buffer")
                executed = op
            elif op.name == "hal.buffer_view.buffer":
                at = ir.BlockArgument(op.operands[0]).arg_number
                names[op.results[0]] = self.arguments[at]
            elif op.name == "hal.buffer_view.assert":
                self.input(op)
            elif op.name == "hal.device.queue.alloca":
                name, size = f"transient_{len(names)}", number(op.operands[len(op.operands) - 1])
                # IREE rounds memory up to whole lines, and patterns have up to four bytes.
                self.manifest.buffer(name, "temp", "i32", [-(-size // 4)])
                names[op.results[0]], self.sizes[name] = name, size
            elif not HARMLESS.match(op.name):
                refuse(f"its entry point has {op.name}, which is not exported")
        if executed is None:
            refuse("it submits no command buffer")
        self.places = names
        commands = self.functions[self.commands[symbol(producer(executed.operands[4]), "global")]]
        bound = list(executed.operands)[5:]
        count = len(bound) // 3
        self.bindings = [(names[b], number(o)) for b, o in zip(bound[:count], bound[count : 2 * count])]
        for op in map(lambda o: o.operation, commands.regions[0].blocks[0].operations):
            self.command(op)
        results = list(body.operations)[-1].operands
        if len(results) != len(outputs):
            refuse(f"it returns {len(results)} tensors, the model {len(outputs)}")
        for name, result in zip(outputs, results):
            self.output(name, producer(result))

    def input(self, op):
        """An input, whose shape and type the entry point asserts: view, element type, encoding, dimensions."""
        name = self.arguments[ir.BlockArgument(op.operands[0]).arg_number]
        ty = element_of(op.operands[1])
        self.manifest.buffer(name, "input", ty, [number(d) for d in list(op.operands)[3:]])

    def command(self, op):
        operands = list(op.operands)
        if op.name == "hal.command_buffer.dispatch":
            self.dispatch(operands)
        elif op.name == "hal.command_buffer.fill_buffer":
            buffer, base = self.place(operands[1])
            self.manifest.steps.append({"fill": {"to": buffer, **filling(operands[4], base + number(operands[2]), number(operands[3]))}})
        elif op.name == "hal.command_buffer.copy_buffer":
            # Source, its offset, target, its offset, length.
            (source, at), (target, to) = self.place(operands[1]), self.place(operands[3])
            offsets = {"from_offset": at + number(operands[2]), "to_offset": to + number(operands[4])}
            self.manifest.steps.append({"copy": {"from": source, "to": target, "bytes": number(operands[5])} | offsets})
        elif not HARMLESS.match(op.name):
            refuse(f"its commands have {op.name}, which is not exported")

    def place(self, value):
        """A binding's number, or a constant, as a buffer and an offset."""
        if str(value.type) == "index":
            return self.bindings[number(value)]
        return symbol(producer(value), "global"), 0

    def dispatch(self, operands):
        kernel = entry_of(str(attribute(producer(operands[2]), "entry_point")).rsplit("@", 1)[-1].strip('"'))
        grid, rest = [number(n) for n in operands[3:6]], operands[6:]
        scalars = [value for value in rest if str(value.type) == "i32"]
        rest = rest[len(scalars) :]
        if len(rest) % 3:
            refuse(f"{kernel} is dispatched in a form that is not exported")
        count = len(rest) // 3
        args = []
        for buffer, offset in zip(rest[:count], rest[count : 2 * count]):
            name, base = self.place(buffer)
            at = base + number(offset)
            args.append({"buffer": name, "offset": at} if at else name)
        block, shared = self.shapes[kernel]
        args += [raw("i", number(value)) for value in scalars]
        self.manifest.launch(kernel, grid, block, args, shared)

    def output(self, name, view):
        """A result: buffer, offset, length, element type, encoding, dimensions. Its bytes are copied out of the transient memory."""
        if view is None or view.name != "hal.buffer_view.create":
            refuse(f"its result {name} is no part of a buffer")
        operands = list(view.operands)
        self.manifest.buffer(name, "output", element_of(operands[3]), [number(d) for d in operands[5:]])
        copy = {"from": self.places[operands[0]], "from_offset": number(operands[1]), "to": name, "bytes": number(operands[2])}
        self.manifest.steps.append({"copy": copy})


def filling(pattern, offset, size):
    """Repeats the pattern of a fill, of one or two bytes, to four bytes."""
    width = {"i8": 1, "i16": 2, "i32": 4}.get(str(pattern.type))
    if width is None or offset % 4 or size % 4:
        refuse(f"it fills {size} bytes from {offset} on with a pattern of type {pattern.type}")
    unit = (number(pattern) & (1 << 8 * width) - 1).to_bytes(width, "little")
    return {"value": int.from_bytes(unit * (4 // width), "little", signed=True), "offset": offset, "bytes": size}


def element_of(value):
    """`hal.element_type<f32>` as a type of the manifest."""
    found = re.search(r"element_type<(\w+)>", str(producer(value)))
    ty = found[1] if found else None
    unsigned = {f"ui{n}": f"u{n}" for n in (8, 16, 32, 64)} | {f"si{n}": f"i{n}" for n in (8, 16, 32, 64)}
    known = ELEMENTS | unsigned
    if ty not in known:
        refuse(f"elements of type {ty} have no equal in a kernel graph")
    return known[ty]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("-o", "--output", required=True, help="the folder to write")
    parser.add_argument("--arch", type=int, default=80, help="compute capability: 80 is 8.0 [80]")
    parser.add_argument("--name", help="of the function [the ONNX file's]")
    args = parser.parse_args()
    model = onnx.load(args.model, load_external_data=False)
    constants = {initializer.name for initializer in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in constants]
    with tempfile.TemporaryDirectory() as folder:
        exports, hal, ptx = compiled(args.model, args.arch, pathlib.Path(folder))
    name = args.name or pathlib.Path(args.model).stem
    manifest = Manifest(name, f"iree {iree_version.VERSION}")
    for index, text in enumerate(ptx):
        manifest.ptx(f"kernels/{index}.ptx", text)
    Exporter(hal, shapes_of(exports), manifest).export(hal, inputs, [value.name for value in model.graph.output])
    manifest.write(args.output)


if __name__ == "__main__":
    main()
