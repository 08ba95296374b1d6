#!/usr/bin/env python3
"""Measures whole models beside PyTorch on the same GPU, with random weights, and compares their answers.

speed.py --output FILE.json [--device cuda:0] [--models resnet50,bert] [--batches 1,8]

Needs torch, torchvision, transformers and onnx. Models are exported and compiled by several processes at once, then measured one after the other: Atoll's median time of a
request with its copies, the sum of its kernels' times from `atoll profile`, PyTorch eager, and PyTorch in a CUDA graph with TF32 off and on. All computes in f32.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

REQUESTS = 30
SEQUENCE = 128
# Largest difference of an element, relative to the largest element of its output.
TOLERANCE = 2e-3


class Text:
    """Wraps a model of transformers: token ids in, one tensor out."""

    def __new__(cls, model, kept):
        import torch

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, input_ids, attention_mask):
                return self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True)[kept]

        return Module()


def image_model(name):
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def text_model(kind, config, kept):
    import transformers

    configuration = getattr(transformers, config)()
    configuration.use_cache = False
    configuration._attn_implementation = "eager"
    return Text(getattr(transformers, kind)(configuration), kept)


MODELS = {
    "resnet50": lambda: image_model("resnet50"),
    "mobilenet_v2": lambda: image_model("mobilenet_v2"),
    "vit_b_16": lambda: image_model("vit_b_16"),
    "distilbert": lambda: text_model("DistilBertModel", "DistilBertConfig", "last_hidden_state"),
    "bert": lambda: text_model("BertModel", "BertConfig", "last_hidden_state"),
    "gpt2": lambda: text_model("GPT2LMHeadModel", "GPT2Config", "logits"),
}
IMAGES = ("resnet50", "mobilenet_v2", "vit_b_16")


def build(name, batch):
    """The module and its inputs by name. The same seed gives the same model in every process."""
    import torch

    torch.manual_seed(1)
    module = MODELS[name]().eval()
    # Norms that change nothing would hide mistakes.
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(part.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(part.running_var, 0.8, 1.2)
    if name in IMAGES:
        return module, {"image": torch.randn(batch, 3, 224, 224)}
    ids = torch.randint(0, 1000, (batch, SEQUENCE))
    return module, {"input_ids": ids, "attention_mask": torch.ones(batch, SEQUENCE, dtype=torch.int64)}


def export(module, inputs, path):
    """Writes the model as ONNX, with the exporter that can."""
    import torch

    names = {"input_names": list(inputs), "output_names": ["output"]}
    try:
        torch.onnx.export(module, tuple(inputs.values()), str(path), opset_version=17, dynamo=False, **names)
    except Exception:  # what the old exporter cannot, the other one may
        torch.onnx.export(
            module, tuple(inputs.values()), str(path), opset_version=18, dynamo=True, external_data=False, **names
        )


def prepare(name, batch, options):
    """Exports and compiles a model in a process of its own, and saves inputs and expected outputs."""
    import warnings

    import numpy as np
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(4)
    folder = pathlib.Path(options.folder) / f"{name}-{batch}"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    module, inputs = build(name, batch)
    with torch.no_grad():
        expected = module(*inputs.values())
        export(module, inputs, folder / "model.onnx")
    for input_name, tensor in inputs.items():
        np.save(folder / f"{input_name}.npy", tensor.numpy())
    np.save(folder / "expected.npy", expected.numpy())
    exported = time.monotonic() - began
    began = time.monotonic()
    command = [options.atoll, "compile", folder / "model.onnx", "-o", folder / "model.kg", "--target", options.target]
    if shutil.which("ptxas"):
        # Otherwise the driver does it when the model is loaded.
        command.append("--assemble")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise RuntimeError(f"atoll compile: {done.stderr.strip()[-400:]}")
    (folder / "model.onnx").unlink()
    return {"export_s": round(exported, 1), "compile_s": round(time.monotonic() - began, 1)}


def atoll_json(options, *words):
    command = [options.atoll, *words, "--device", options.device, "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"atoll {words[0]}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def measure_atoll(name, batch, options):
    import numpy as np

    folder = pathlib.Path(options.folder) / f"{name}-{batch}"
    bundle = folder / "model.kg"
    files = [path for path in folder.glob("*.npy") if path.stem not in ("expected", "output")]
    inputs = [word for path in files for word in ("--input", f"{path.stem}={path}")]
    row = {}
    for kind, flags in (("request_ms", ()), ("graph_request_ms", ("--priority", "1", "--graph-segment", "64"))):
        words = ("infer", "--model", bundle, *inputs, "--repeat", REQUESTS, "--top", "0", "--save", folder, *flags)
        row[kind] = round(statistics.median(atoll_json(options, *words)["milliseconds"][3:]), 4)
    found, expected = np.load(folder / "output.npy"), np.load(folder / "expected.npy")
    row["difference"] = float(np.abs(found - expected).max() / np.abs(expected).max())
    row["correct"] = bool(row["difference"] <= TOLERANCE)
    shape = atoll_json(options, "profile", bundle, *inputs, "--runs", 10)["shapes"][0]
    launches = shape["launches"]
    row["kernels_ms"] = round(sum(launch["total_ns"] for launch in launches) / 1e6, 4)
    row["launches"] = len(launches)
    slowest = sorted(launches, key=lambda launch: -launch["total_ns"])[:12]
    row["slowest"] = [{"kernel": l["kernel"], "blocks": l["blocks"], "us": l["total_ns"] / 1e3} for l in slowest]
    by_kernel = {}
    for launch in launches:
        stem = launch["kernel"].rstrip("0123456789").rstrip("_")
        by_kernel[stem] = by_kernel.get(stem, 0) + launch["total_ns"] / 1e3
    row["us_by_kind"] = dict(sorted(by_kernel.items(), key=lambda item: -item[1]))
    return row


def timed(call):
    """Median time of a call in milliseconds, by events on the GPU."""
    import torch

    for _ in range(5):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(REQUESTS):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return round(statistics.median(times), 4)


def measure_torch(name, batch):
    import torch

    module, inputs = build(name, batch)
    module = module.cuda()
    tensors = [tensor.cuda() for tensor in inputs.values()]
    row = {}
    for kind, allowed in (("f32", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        with torch.no_grad():
            row[f"eager_{kind}_ms"] = timed(lambda: module(*tensors))
            try:
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    module(*tensors)
                torch.cuda.current_stream().wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    module(*tensors)
                row[f"graph_{kind}_ms"] = timed(graph.replay)
            except RuntimeError as error:
                row[f"graph_{kind}_error"] = str(error)[:200]
                torch.cuda.synchronize()
    return row


def torch_in_process(rows):
    """PyTorch's times of all rows: in a process of its own, so that no context of it is there while Atoll is measured."""
    rows = [row for row in rows if "atoll" in row]
    if not rows:
        return
    wanted = ",".join(f"{row['model']}:{row['batch']}" for row in rows)
    command = [sys.executable, "-W", "ignore", __file__, "--torch", wanted, "--output", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    for row, line in zip(rows, done.stdout.splitlines()):
        row["torch"] = json.loads(line)
    if done.returncode:
        rows[0].setdefault("errors", []).append(f"torch: {done.stderr.strip()[-400:]}")


def print_torch(wanted):
    """One line of JSON for each `model:batch`."""
    for name, batch in (row.split(":") for row in wanted.split(",")):
        try:
            row = measure_torch(name, int(batch))
        except Exception as error:  # one failure must not end the others
            row = {"error": str(error)[:400]}
        print(json.dumps(row), flush=True)


def table(rows):
    head = ("model", "batch", "request", "in graphs", "kernels", "torch f32", "torch tf32", "kernels/f32", "differs")
    print(("{:14}{:>6}" + "{:>12}" * 7).format(*head))
    for row in rows:
        atoll, torch = row.get("atoll", {}), row.get("torch", {})
        best = torch.get("graph_f32_ms") or torch.get("eager_f32_ms")
        ratio = f"{atoll['kernels_ms'] / best:.2f}" if best and "kernels_ms" in atoll else "-"
        cells = (
            atoll.get("request_ms", "-"), atoll.get("graph_request_ms", "-"), atoll.get("kernels_ms", "-"),
            best or "-", torch.get("graph_tf32_ms") or torch.get("eager_tf32_ms") or "-", ratio,
            f"{atoll['difference']:.1e}" if "difference" in atoll else "-",
        )
        print(("{:14}{:>6}" + "{:>12}" * 7).format(row["model"], row["batch"], *map(str, cells)))
        for error in row.get("errors", []):
            print(f"    {error[:300]}")


def attempt(row, key, call):
    try:
        row[key] = call()
    except Exception as error:  # one failure must not end the others
        row.setdefault("errors", []).append(f"{key}: {error!r}" if str(error) == "" else f"{key}: {error}")


def main():
    import farm

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoll", default=str(pathlib.Path(__file__).resolve().parents[1] / "bin/atoll"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--target")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--seconds", type=float, default=150, help="models not measured by then are left out")
    parser.add_argument("--folder", help="folder for models [default: a temporary one]")
    parser.add_argument("--prepare-only", action="store_true", help="export and compile into --folder")
    parser.add_argument("--torch", help=argparse.SUPPRESS)
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    if options.torch:
        print_torch(options.torch)
        return
    end = time.monotonic() + options.seconds
    options.target = options.target or farm.target_of(options.device)
    with tempfile.TemporaryDirectory() as temporary:
        options.folder = options.folder or temporary
        rows = [
            {"model": name, "batch": int(batch)} for batch in options.batches.split(",")
            for name in options.models.split(",")
        ]
        measured(rows, options, end)
        table(rows)
    pathlib.Path(options.output).write_text(json.dumps({"target": options.target, "rows": rows}, indent=1))
    fine = all("errors" not in row and row.get("atoll", {}).get("correct", True) for row in rows)
    sys.exit(0 if fine else 1)


def prepared(options):
    """Where an earlier call left prepared models: a marker per model, with the times of its stages."""
    return lambda row: pathlib.Path(options.folder) / f"{row['model']}-{row['batch']}.json"


def measured(rows, options, end):
    marker = prepared(options)
    missing = [row for row in rows if not marker(row).exists()]
    with concurrent.futures.ProcessPoolExecutor(max_workers=min(6, max(1, len(missing)))) as pool:
        futures = [(row, pool.submit(prepare, row["model"], row["batch"], options)) for row in missing]
        for row, future in futures:
            attempt(row, "prepared", lambda: future.result(timeout=max(1, end - time.monotonic())))
            if "prepared" in row:
                marker(row).write_text(json.dumps(row["prepared"]))
    if options.prepare_only:
        return
    for row in rows:
        if not marker(row).exists():
            continue
        if time.monotonic() > end:
            row.setdefault("errors", []).append("not measured: out of time")
            continue
        attempt(row, "atoll", lambda: measure_atoll(row["model"], row["batch"], options))
    torch_in_process(rows)


if __name__ == "__main__":
    main()
