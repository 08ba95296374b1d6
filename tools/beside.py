#!/usr/bin/env python3
"""`make beside REV=COMMIT`: measures an earlier commit and the present tree in turn, and compares them.

Both are checked out and built in a folder of their own, with the optimized profile. Each round runs
every measure once with each of them; the order changes from round to round. The table has medians,
their ratio, and the spread of the rounds (largest minus smallest, as a part of the median). A
difference below the spread says nothing.

All results are kept. The same command continues where it was interrupted, and a larger number of
rounds adds to the finished ones. Close other programs: a round takes some ten minutes.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIDES = ("then", "now")


def at(*path):
    """A value of a JSON result, by keys and indices."""

    def find(result):
        for key in path:
            result = result[key]
        return result

    return find


def added(compute_units, executor):
    """What the engine adds to a kernel on such a device."""

    def find(result):
        rows = (row for row in result if (row["compute_units"], row["executor"]) == (compute_units, executor))
        return next(rows)["engine_adds_us"]

    return find


def tier(name):
    return at("tiers", name, "start", "p50_ms")


LATENCY = "bench latency --rt squeezenet.kg --be resnet18.kg --rate 20 --duration 12"
LATENCY_VALUES = {
    "SqueezeNet alone, p50 ms": at("rt_alone", "latency", "p50_ms"),
    "beside ResNet-18, p50 ms": at("rt_beside", "latency", "p50_ms"),
    "submission to first block, p50 µs": at("preemption", "latency", "p50_us"),
    "submission to first block, p99 µs": at("preemption", "latency", "p99_us"),
}
FUNCTIONS = "bench functions --functions resnet50 --width 1 --image 224 --clients 8 --no-exclusive --duration 10"
FUNCTIONS_VALUES = {
    "requests a second": at(0, "points", 0, "shared_per_s"),
    "loads a request": at(0, "points", 0, "loads_per_request"),
    "longest wait, ms": at(0, "points", 0, "latency", "max_ms"),
}

# Measures by name: the arguments of `atoll`, and the values in its JSON output.
MEASURES = {
    "engine": (
        "bench engine",
        {
            "one unit, µs": added(1, False),
            "two units, µs": added(2, False),
            "two units in an executor, µs": added(2, True),
        },
    ),
    "coldstart": (
        "bench coldstart --count 5",
        {
            "new file, ms": tier("new,_from_disk"),
            "from disk, ms": tier("from_disk"),
            "from host memory, ms": tier("from_host_memory"),
        },
    ),
    "overcommitted": (f"{FUNCTIONS} --memory-limit 500M", FUNCTIONS_VALUES),
    "quota": (f"{FUNCTIONS} --memory-limit 500M --quota 490M", FUNCTIONS_VALUES),
    "latency": (f"{LATENCY} --compute-units 2", LATENCY_VALUES),
    "latency-one-unit": (f"{LATENCY} --compute-units 1", LATENCY_VALUES),
}

# Benchmarks of the scheduler: `cargo bench -p atoll-core --bench NAME`.
DECISIONS = "decision"

# Names the two commits of a folder.
ABOUT = "commits.json"


def run(command, **options):
    print("+", " ".join(map(str, command)), file=sys.stderr, flush=True)
    return subprocess.run(command, check=True, text=True, **options)


def git(*arguments):
    return run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE).stdout.strip()


class Side:
    """One of the two trees, with its programs and models."""

    def __init__(self, folder, commit):
        self.commit = commit
        self.source, self.target, self.models = folder / "source", folder / "target", folder / "models"
        self.built = folder / "built"

    def environment(self):
        return {**os.environ, "CARGO_TARGET_DIR": str(self.target)}

    def cargo(self, *arguments, **options):
        return run(["cargo", *arguments], cwd=self.source, env=self.environment(), **options)

    def build(self):
        if self.built.exists():
            return
        if not self.source.exists():
            git("worktree", "add", "--detach", str(self.source), self.commit)
        features = os.environ.get("ATOLL_BIN_FEATURES", "").split()
        self.cargo("build", "--release", "--quiet", "-p", "atoll", "-p", "atoll-models", *features)
        self.cargo("bench", "--quiet", "-p", "atoll-core", "--bench", DECISIONS, "--no-run")
        self.models.mkdir(parents=True, exist_ok=True)
        for model in ("squeezenet", "resnet18"):
            run([self.target / "release/atoll-models", model, "-o", f"{model}.onnx"], cwd=self.models)
            run([self.target / "release/atoll", "compile", f"{model}.onnx", "--target", "host"], cwd=self.models)
        self.built.touch()

    def measure(self, name):
        """The values of a measure, by their names."""
        if name == DECISIONS:
            bench = ["bench", "-p", "atoll-core", "--bench", DECISIONS]
            return decisions(self.cargo(*bench, stdout=subprocess.PIPE).stdout)
        command, values = MEASURES[name]
        program = [self.target / "release/atoll", *command.split(), "--json"]
        result = json.loads(run(program, cwd=self.models, stdout=subprocess.PIPE).stdout)
        return {value: find(result) for value, find in values.items()}


def decisions(output):
    """The times in nanoseconds that criterion printed, by the names of its benchmarks."""
    units = {"ps": 1e-3, "ns": 1, "µs": 1e3, "us": 1e3, "ms": 1e6}
    times, name = {}, ""
    for line in output.splitlines():
        # A long name has a line of its own.
        found = re.match(r"(.*?)\s*time:\s+\[\S+ \S+ (\S+) (\S+) ", line)
        if found:
            times[f"{found[1] or name}, ns"] = float(found[2]) * units[found[3]]
        name = line.strip()
    return times


def present():
    """The commit of the present tree, with its changes of tracked files."""
    return git("stash", "create") or git("rev-parse", "HEAD")


def measure_all(sides, folder, names, rounds):
    results = folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    for round_number in range(rounds):
        for name in names:
            for side in SIDES if round_number % 2 == 0 else reversed(SIDES):
                result = results / f"{name}.{round_number}.{side}.json"
                if not result.exists():
                    values = sides[side].measure(name)
                    unfinished = result.with_suffix(".unfinished")
                    unfinished.write_text(json.dumps(values, indent=1))
                    unfinished.rename(result)


def read(folder, name, side):
    """The values of all finished rounds of a measure, by their names."""
    rounds = {}
    for result in sorted((folder / "results").glob(f"{name}.*.{side}.json")):
        for value, figure in json.loads(result.read_text()).items():
            rounds.setdefault(value, []).append(figure)
    return rounds


def spread(figures):
    middle = statistics.median(figures)
    return (max(figures) - min(figures)) / abs(middle) if middle else 0.0


def table(folder, names):
    lines = ["| measure | then | now | now / then | spread then, now | rounds |", "|---|---|---|---|---|---|"]
    for name in names:
        then, now = (read(folder, name, side) for side in SIDES)
        # A benchmark that only one of the trees has cannot be compared.
        for value in (value for value in then if value in now):
            before, after = statistics.median(then[value]), statistics.median(now[value])
            ratio = f"{after / before:.3f}" if before else "–"
            spreads = ", ".join(f"{spread(figures):.1%}" for figures in (then[value], now[value]))
            rounds = min(len(then[value]), len(now[value]))
            lines.append(f"| {name}: {value} | {before:.4g} | {after:.4g} | {ratio} | {spreads} | {rounds} |")
    return "\n".join(lines)


def remove(folder):
    """Removes the folder, with git's records of the trees in it."""
    for side in SIDES:
        if (folder / side / "source").exists():
            git("worktree", "remove", "--force", str(folder / side / "source"))
    shutil.rmtree(folder, ignore_errors=True)


def arguments():
    names = [*MEASURES, DECISIONS]
    plain = argparse.RawDescriptionHelpFormatter
    epilog = "measures: " + ", ".join(names)
    parser = argparse.ArgumentParser(description=__doc__, epilog=epilog, formatter_class=plain)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, finished ones included (default 3)")
    parser.add_argument("--only", nargs="+", choices=names, metavar="MEASURE", help="measure only these")
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        help="where trees, programs and results are kept; a folder with results continues with the trees it has",
    )
    parser.add_argument("--table", action="store_true", help="only print the table of the finished rounds")
    parser.add_argument("--remove", action="store_true", help="only remove the folder, with its results")
    parsed = parser.parse_args()
    parsed.only = parsed.only or names
    return parsed


def open_folder(options):
    """The folder, and the commits that are compared in it."""
    if options.folder and (options.folder / ABOUT).exists():
        return options.folder.resolve(), json.loads((options.folder / ABOUT).read_text())
    commits = {"then": git("rev-parse", f"{options.commit}^{{commit}}"), "now": present()}
    # The commits of two snapshots of an unchanged tree differ, their trees do not.
    trees = [git("rev-parse", "--short", f"{commit}^{{tree}}") for commit in commits.values()]
    cache = pathlib.Path(os.environ.get("ATOLL_CACHE", ROOT / "target"))
    folder = (options.folder or cache / "beside" / "-".join(trees)).resolve()
    if (folder / ABOUT).exists():
        return folder, json.loads((folder / ABOUT).read_text())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).write_text(json.dumps(commits, indent=1))
    return folder, commits


def main():
    options = arguments()
    folder, commits = open_folder(options)
    if options.remove:
        return remove(folder)
    if not options.table:
        sides = {side: Side(folder / side, commit) for side, commit in commits.items()}
        for side in sides.values():
            side.build()
        measure_all(sides, folder, options.only, options.rounds)
    print(f"then: {commits['then'][:12]}, now: {commits['now'][:12]}; results in {folder}\n")
    print(table(folder, options.only))


if __name__ == "__main__":
    main()
