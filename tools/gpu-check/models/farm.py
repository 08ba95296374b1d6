"""Runs many small checks at once: each worker process has a daemon of its own."""

import argparse
import json
import multiprocessing
import os
import pathlib
import queue
import shutil
import subprocess
import tempfile
import time

from daemon import Daemon, Failed, Refused


START_ATTEMPTS = 5


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoll", default=str(pathlib.Path(__file__).resolve().parents[1] / "bin/atoll"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--target", help="target of the compiler [default: that of the GPU]")
    parser.add_argument("--workers", type=int, default=max(1, min(14, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--seconds", type=float, default=90, help="checks that have not begun by then are left out")
    parser.add_argument("--filter", default="", help="regular expression that selects checks by name")
    parser.add_argument("--output", required=True, help="file of JSON to write")
    return parser


def target_of(device):
    """The compiler's target for a device: `host`, or the architecture of the GPU as its driver names it."""
    if not device.startswith("cuda"):
        return device.split(":")[0]
    number = device.partition(":")[2] or "0"
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "-i", number]
    try:
        capability = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
        return "nvidia:sm_" + capability.replace(".", "")
    except (OSError, subprocess.SubprocessError):
        return "nvidia:sm_75"


def started(options, folder):
    """A daemon. A GPU may need some time until it has freed the memory of processes that just ended."""
    for attempt in range(START_ATTEMPTS):
        try:
            return Daemon(options.atoll, options.device, folder)
        except Failed:
            if attempt + 1 == START_ATTEMPTS:
                raise
            time.sleep(2)


def work(check, options, names, taken, results, folder):
    """A worker: takes names until none is left."""
    try:
        daemon = started(options, folder)
    except Failed as error:
        results.put((None, {"outcome": "error", "reason": str(error)}))
        return
    while time.monotonic() < options.end:
        with taken.get_lock():
            index = taken.value
            taken.value += 1
        if index >= len(names):
            break
        began = time.monotonic()
        try:
            row = check(daemon, names[index], options)
        except Refused as error:
            row = {"outcome": "refused", "reason": str(error)}
        except Exception as error:  # a defect of one check must not end the others
            row = {"outcome": "error", "reason": str(error) if isinstance(error, Failed) else repr(error)}
        row["seconds"] = round(time.monotonic() - began, 3)
        results.put((names[index], row))
    daemon.stop()


def run(check, names, options):
    """Calls `check(daemon, name, options)` for all names. Writes a row for each, and returns the rows by name."""
    options.target = options.target or target_of(options.device)
    options.end = time.monotonic() + options.seconds
    context = multiprocessing.get_context("fork")
    taken, results = context.Value("l", 0), context.Queue()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="atoll-checks-"))
    workers = [
        context.Process(target=work, args=(check, options, names, taken, results, folder / str(number)))
        for number in range(min(options.workers, max(1, len(names))))
    ]
    for worker in workers:
        worker.start()
    rows = collected(names, workers, results, options.end + 30)
    for worker in workers:
        worker.join(timeout=5)
        if worker.is_alive():
            worker.kill()
    shutil.rmtree(folder, ignore_errors=True)
    for name in names:
        rows.setdefault(name, {"outcome": "not run", "reason": "out of time, or no worker"})
    pathlib.Path(options.output).write_text(json.dumps({"target": options.target, "rows": rows}, indent=1))
    return rows


def collected(names, workers, results, end):
    """The rows of the workers, until `end`: what has begun in time may take a little longer."""
    rows = {}
    while len(rows) < len(names) and time.monotonic() < end:
        # Looked up first: a worker that has ended has sent everything.
        running = any(worker.is_alive() for worker in workers)
        try:
            name, row = results.get(timeout=0.5)
        except queue.Empty:
            if not running:
                break
            continue
        if name is None:
            print(f"a worker could not start: {row['reason']}")
        else:
            rows[name] = row
    return rows


def summarise(title, rows, began):
    """Prints counts by outcome, and what is wrong. Returns whether all is well."""
    counts = {}
    for row in rows.values():
        counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
    counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"{title}: {len(rows)} checks in {time.monotonic() - began:.0f} s: {counted}")
    bad = [(name, row) for name, row in sorted(rows.items()) if row["outcome"] in ("wrong", "error")]
    for name, row in bad[:60]:
        print(f"  {row['outcome']}  {name}: {row['reason'][:240]}")
    return bool(rows) and not bad and "not run" not in counts
