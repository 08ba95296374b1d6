#!/usr/bin/env python3
"""Compile time of models, and their latency beside ONNX Runtime's with as many threads, spinning off, in alternating rounds.

bench.py ATOLL FOLDER MODEL...
"""

import json
import pathlib
import statistics
import subprocess
import sys

ROUNDS = 3
RUNS = 7
ORACLE = pathlib.Path(__file__).parent.parent / "tests/python/oracle.py"


def output(*command):
    return json.loads(subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout)


def latencies(atoll, bundle, model, threads):
    ours, theirs = [], []
    for _ in range(ROUNDS):
        run = output(atoll, "infer", "--model", bundle, "--repeat", RUNS + 2, "--compute-units", threads, "--top", 0, "--json")
        ours += run["milliseconds"][2:]
        theirs += output(sys.executable, ORACLE, model, "-", "--time", RUNS, "--threads", threads)["milliseconds"]
    return statistics.median(ours), statistics.median(theirs)


def main():
    atoll, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    print("| model | compile s | Atoll 1T ms | ORT 1T ms | ratio | Atoll 2T ms | ORT 2T ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in sys.argv[3:]:
        model, bundle = folder / f"{name}.onnx", folder / f"{name}.kg"
        report = output(atoll, "compile", model, "-o", bundle, "--target", "host", "--no-cache", "--json")
        seconds = sum(stage["milliseconds"] for stage in report["stages"]) / 1e3
        cells = []
        for threads in (1, 2):
            ours, theirs = latencies(atoll, bundle, model, threads)
            cells.append(f"{ours:.1f} | {theirs:.1f} | {ours / theirs:.2f}")
        print(f"| {name} | {seconds:.1f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
