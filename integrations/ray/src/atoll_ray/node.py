"""Joins a machine to a Ray cluster with the resources of its daemon.

    atoll-ray start -- --address=HEAD:6379
    atoll-ray resources
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from typing import Any, NoReturn

from . import auth
from .daemon import Daemon, DaemonError

#: Compute units times time, in percent; 100 for each device.
SM_PCT = "atoll_sm_pct"

#: Device memory in MiB.
MEM_MIB = "atoll_mem_mib"

#: Real-time slots.
RT_SLOTS = "atoll_rt_slots"

#: The variable with the URL of the machine's daemon, for replicas on the machine.
URL_VARIABLE = "ATOLL_URL"

#: The variable with the daemon's URL for clients, if it differs.
ADVERTISE_VARIABLE = "ATOLL_RAY_ADVERTISE"


def resources(capacity: dict[str, Any]) -> dict[str, float]:
    """Ray's custom resources of a machine, from the daemon's capacity report.

    They describe whole devices and not the free capacity, since leases come and go, and Ray subtracts its own replicas.
    Ray's counts are a hint for placement; the daemon decides whether it grants a lease.
    """
    devices = [device for device in capacity["devices"] if device["state"] in ("ready", "unready")]
    totals = {
        SM_PCT: 100.0 * len(devices),
        MEM_MIB: float(sum(device["memory_bytes"] for device in devices) >> 20),
        RT_SLOTS: float(sum(device["real_time_slots"] for device in devices)),
    }
    # Ray refuses resources of 0.
    return {name: value for name, value in totals.items() if value > 0}


def demand(sm: float, quota_request: float, mem_bytes: int, slots: int) -> dict[str, float]:
    """Ray's custom resources of a replica: partition times quota, memory and real-time slots."""
    wanted = {
        SM_PCT: round(sm * quota_request, 2),
        MEM_MIB: float(-(-mem_bytes // (1 << 20))),
        RT_SLOTS: float(slots),
    }
    return {name: value for name, value in wanted.items() if value > 0}


def wait_for_capacity(daemon: Daemon, wait_s: float) -> dict[str, Any]:
    """Waits at most ``wait_s`` seconds for an answer of the daemon. Returns its capacity report."""
    until = time.monotonic() + wait_s
    while True:
        try:
            return daemon.capacity()
        except DaemonError as error:
            if not error.is_temporary or time.monotonic() >= until:
                raise
            time.sleep(0.2)


def main(arguments: list[str] | None = None) -> int:
    """The command ``atoll-ray``."""
    parser = argparse.ArgumentParser(prog="atoll-ray", description="Joins a machine with a daemon to a Ray cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in [
        ("start", "Run `ray start` with the resources of the daemon and the arguments after --."),
        ("resources", "Print the resources of the daemon as JSON, for `ray start --resources`."),
    ]:
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("--url", help=f"inference port of the daemon [default: ${URL_VARIABLE}]")
        command.add_argument("--wait", type=float, default=60.0, metavar="SECONDS", help="wait for the daemon")
        if name == "start":
            command.add_argument("--advertise", metavar="URL", help="the daemon's URL for clients [default: --url]")
            command.add_argument("rest", nargs=argparse.REMAINDER, metavar="-- ARGUMENTS", help="for `ray start`")
    args = parser.parse_args(arguments)
    daemon = Daemon(args.url)
    try:
        found = resources(wait_for_capacity(daemon, args.wait))
    except DaemonError as error:
        print(f"atoll-ray: {error}", file=sys.stderr)
        return 1
    if args.command == "resources":
        print(json.dumps(found))
        return 0
    try:
        start(daemon.url, args.advertise, found, args.rest)
    except (OSError, ValueError) as error:
        print(f"atoll-ray: {error}", file=sys.stderr)
        return 2


def start(url: str, advertise: str | None, found: dict[str, float], rest: list[str]) -> NoReturn:
    """Replaces this process by ``ray start``. Its workers inherit the daemon's URL."""
    rest = rest[1:] if rest[:1] == ["--"] else rest
    others, rest = _take_resources(rest)
    variables, message = auth.prepare(os.environ, "--head" in rest)
    if message is not None:
        print(f"atoll-ray: {message}", file=sys.stderr)
    os.environ.update(variables)
    os.environ[URL_VARIABLE] = url
    if advertise:
        os.environ[ADVERTISE_VARIABLE] = advertise
    ray = shutil.which("ray") or os.path.join(os.path.dirname(sys.executable), "ray")
    command = [ray, "start", f"--resources={json.dumps(others | found)}", *rest]
    os.execv(ray, command)


def _take_resources(rest: list[str]) -> tuple[dict[str, float], list[str]]:
    """Removes ``--resources``, which may name other resources of the machine, and returns its value."""
    for at, argument in enumerate(rest):
        if argument == "--resources" and at + 1 < len(rest):
            text, kept = rest[at + 1], rest[:at] + rest[at + 2 :]
        elif argument.startswith("--resources="):
            text, kept = argument.partition("=")[2], rest[:at] + rest[at + 1 :]
        else:
            continue
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError(f"--resources is {text}, which is not a JSON object")
        return value, kept
    return {}, rest
