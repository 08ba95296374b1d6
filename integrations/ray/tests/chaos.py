"""Three nodes of Ray on loopback, each with a daemon, of which one part after another is killed or stopped under load.

    chaos.py ATOLL BUNDLE FOLDER

ATOLL is the program, BUNDLE the packed `tests/functions/affine.toml`, and FOLDER an empty folder. The deployment first
grows from 3 replicas to 12 and shrinks to 3. Then each round kills a replica, a raylet, a daemon or the head, or stops
a node or a daemon for some seconds. `ATOLL_ROUNDS` is the number of rounds (5), and `ATOLL_SEED` selects them (1).

These must hold at every moment: no unit, memory or slot is promised twice, no epoch and no instance has two owners, the
leases of dead holders end within their time, each request ends with its answer or an error, and requests that may be
repeated succeed. After each round the replicas and the leases are the same within 30 s from the repair. The limit
counts for a machine on which `import ray` takes two seconds, and is longer on a slower one.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from audit import Audit
from driver import Driver, DriverLost
from load import Load, vector
from machines import Machine, adopt_orphans, check, descendants, end_all, is_alive, program, reap, send, until

from atoll_ray.daemon import DaemonError

NAME = "affine"
TTL_S = 6
REPLICAS = 3
MOST_REPLICAS = 12

#: Time from a repair until all replicas are there again, on a quick machine.
SETTLE_S = 30.0

#: What `import ray` takes on a quick machine, in seconds.
IMPORT_S = 2.0

#: Shorter and longer than Ray waits for a node (15 s); both longer than a lease lives.
PAUSES_S = (8.0, 25.0)


def slowness() -> float:
    """How much slower than a quick machine this one is at the moment; at least 1."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import ray"], check=True)
    return max(1.0, (time.monotonic() - began) / IMPORT_S)


class House:
    """The machines, their observers, and the faults."""

    def __init__(self, atoll: str, bundle: Path, folder: Path, temporary: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.temporary = temporary
        self.variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": f"{self.random.getrandbits(128):032x}",
            # The head finds its tables again after it was killed.
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(folder / "gcs"),
        }
        os.environ.update({name: self.variables[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")})
        self.machines = [Machine(atoll, folder / str(at), f"127.0.0.{at + 1}") for at in (1, 2, 3)]
        for machine in self.machines:
            machine.deploy(bundle)
        self.head, *self.others = self.machines
        self.join_head()
        self.driver = Driver(self.head.head, self.head.address, folder / "driver.log")
        for machine in self.others:
            self.join(machine)
        self.wait_for_nodes()
        self.slow = slowness()
        self.audit = Audit(self.machines, TTL_S, self.slow)
        self.target = REPLICAS

    def join_head(self) -> None:
        # By this file, Ray takes nodes of other machines on this host for a head that still runs.
        (self.temporary / "ray_current_cluster").unlink(missing_ok=True)
        self.head.join(None, self.temporary, self.variables)
        until("Ray's head is there", lambda: self.head.ray_says("Ray runtime started"))

    def join(self, machine: Machine) -> None:
        machine.join(self.head.head, self.temporary, self.variables)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Asks the driver, or a new one if it was lost, until there is an answer: the controller may be restarting."""
        why: list[str] = [""]

        def answer() -> Any:
            try:
                self.driver.connect(60.0)
                return [self.driver.ask(do, **arguments)]
            except RuntimeError as error:
                why[0] = str(error)
                return None
            except DriverLost as error:
                why[0] = str(error)
                # It is stuck, since it tells the errors of Ray itself.
                self.driver.close()
                return None

        try:
            return until(f"an answer to {do}", answer)[0]
        except TimeoutError as error:
            raise TimeoutError(f"no answer to {do}: {why[0]}") from error

    def ask_once(self, do: str, **arguments: Any) -> Any:
        """Asks the driver for what must not be done twice."""
        self.driver.connect(60.0)
        return self.driver.ask(do, timeout_s=90.0, **arguments)

    def rejoin(self) -> None:
        """Nodes that have ended, because Ray had given them up, join again."""
        for machine in self.others:
            if machine.ray.poll() is not None:
                self.join(machine)

    def wait_for_nodes(self) -> None:
        """Waits until Ray has all nodes, and none that it has lost."""

        def are_there() -> bool:
            self.rejoin()
            return bool(self.ask("nodes") == len(self.machines))

        until("all nodes are there", are_there)

    def endpoints(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("endpoints", name=NAME)
        return found

    def unsettled(self) -> str | None:
        """Why the deployment has not reached its target; ``None`` if it has."""
        status = self.ask("status", name=NAME)
        endpoints = [one["endpoint"] for one in status["replicas"] if one["endpoint"]]
        if status["target"] != self.target:
            return f"the target is {status['target']} instead of {self.target}"
        if len(endpoints) != self.target or len(status["replicas"]) != self.target or status["ending"]:
            return f"{status}"
        try:
            leases = {(machine.url, one["instance"]) for machine in self.machines for one in machine.quick.leases()}
            if leases != {(one["url"], one["instance"]) for one in endpoints} or len(leases) != self.target:
                return f"the leases are {leases} and the replicas {endpoints}"
            for one in endpoints:
                inputs = [{"name": name, **vector([2.0])} for name in ("x", "b")]
                body = {"parameters": {"instance": one["instance"]}, "inputs": inputs}
                machine = next(machine for machine in self.machines if machine.url == one["url"])
                check(machine.quick.infer(NAME, body)["outputs"][0]["data"] == [8.0], one)
        except DaemonError as error:
            return str(error)
        return None

    def settle(self) -> float:
        """Waits until the deployment has reached its target, and returns the seconds."""
        began = time.monotonic()
        factor = 1.0
        while (why := self.unsettled()) is not None:
            self.rejoin()
            took = time.monotonic() - began
            if took > SETTLE_S * factor:
                # The machine may be busy with something else.
                factor = max(factor, slowness())
                check(took <= SETTLE_S * factor, f"after {took:.0f} s, at {factor:.1f} times the usual time: {why}")
            time.sleep(0.2)
        return time.monotonic() - began

    def scale(self, replicas: int) -> None:
        self.target = replicas
        self.ask("scale", name=NAME, replicas=replicas)

    def holders_died(self, machine: Machine, endpoints: list[dict[str, Any]]) -> None:
        for one in endpoints:
            if one["url"] == machine.url:
                self.audit.died(one["url"], one["instance"])

    def restart_node(self, machine: Machine, lost: list[int], endpoints: list[dict[str, Any]]) -> None:
        """Waits for the end of a node's processes, with the holders of leases among them, and joins again."""

        def left() -> set[int]:
            # Others may have got the number of a process that is gone.
            return set(lost) & set(descendants(os.getpid()))

        def has_ended() -> bool:
            reap()
            return not any(map(is_alive, left()))

        with contextlib.suppress(TimeoutError):
            until("the node has ended", has_ended, 15.0)
        send(left(), signal.SIGKILL)
        until("the rest has ended", has_ended)
        machine.ray.wait()
        self.holders_died(machine, endpoints)
        if machine is self.head:
            self.driver.close()
            self.join_head()
        else:
            self.join(machine)
        self.wait_for_nodes()

    # The faults. Each returns when what it broke is repaired.

    def replica(self) -> str:
        victim = self.random.choice(self.endpoints())
        check(victim["pid"] in descendants(os.getpid()), "it was started here")
        send([victim["pid"]], signal.SIGKILL)
        self.audit.died(victim["url"], victim["instance"])
        return f"replica {victim['instance']} killed"

    def raylet(self) -> str:
        machine = self.random.choice(self.others)
        endpoints, processes = self.endpoints(), machine.ray_processes()
        raylets = [pid for pid in processes if program(pid) == "raylet"]
        check(len(raylets) == 1, raylets)
        send(raylets, signal.SIGKILL)
        until("its node has ended", lambda: machine.ray.poll() is not None)
        self.restart_node(machine, processes, endpoints)
        return f"raylet of {machine.address} killed"

    def daemon(self) -> str:
        machine = self.random.choice(self.machines)
        machine.kill()
        self.audit.restarted(machine.url)
        away = self.random.uniform(0.0, 2.0)
        time.sleep(away)
        machine.start(machine.port)
        self.audit.restarted(machine.url)
        return f"daemon of {machine.address} killed, back after {away:.1f} s"

    def head_node(self) -> str:
        endpoints, processes = self.endpoints(), self.head.ray_processes()
        servers = [pid for pid in processes if program(pid) == "gcs_server"]
        check(len(servers) == 1, servers)
        send(servers, signal.SIGKILL)
        send(processes, signal.SIGKILL)
        self.restart_node(self.head, processes, endpoints)
        return "head killed"

    def pause(self) -> str:
        machine = self.random.choice(self.machines)
        if machine is not self.head and self.random.random() < 0.7:
            return self.paused_node(machine)
        with self.stopped([machine.process.pid]):
            time.sleep(PAUSES_S[0])
        return f"daemon of {machine.address} stopped for {PAUSES_S[0]:.0f} s"

    def paused_node(self, machine: Machine) -> str:
        endpoints, processes = self.endpoints(), machine.ray_processes()
        for_s = self.random.choice(PAUSES_S)
        with self.stopped(processes):
            self.holders_died(machine, endpoints)
            time.sleep(for_s)
        # Ray ends a node that it had given up.
        time.sleep(1.0)
        self.wait_for_nodes()
        return f"node of {machine.address} stopped for {for_s:.0f} s"

    @contextlib.contextmanager
    def stopped(self, pids: list[int]) -> Iterator[None]:
        send(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            send(pids, signal.SIGCONT)


def play(house: House, rounds: int) -> None:
    slow = house.slow
    print(f"`import ray` takes up to {slow * IMPORT_S:.1f} s: limits are {slow:.1f} times the usual", flush=True)
    share = {"sm": 10, "quota": (0.2, 0.5), "mem": "2M", "class_": "rt"}
    house.ask_once("deploy", source=NAME, replicas=REPLICAS, ttl_s=TTL_S, **share)
    house.settle()
    load = Load(NAME, house.driver, clients=4, give_up_s=2 * SETTLE_S * slow)

    def hold(what: str, took: float) -> None:
        wrong = house.audit.wrong + load.look(slow)
        check(not wrong, f"{what}: {wrong[:20]}")
        print(f"{what}; settled in {took:.1f} s; {load.right} answers, {sum(load.told.values())} told", flush=True)

    for replicas in (MOST_REPLICAS, REPLICAS):
        house.scale(replicas)
        hold(f"scaled to {replicas}", house.settle())
    answers_of_growth = load.right
    check(answers_of_growth > 0, "no request was answered")
    faults: list[Callable[[], str]] = [house.replica, house.raylet, house.daemon, house.head_node, house.pause]
    queue: list[Callable[[], str]] = []
    worst = 0.0
    for number in range(1, rounds + 1):
        if not queue:
            # Each fault once, in another order each time.
            queue = house.random.sample(faults, len(faults))
        what = queue.pop()()
        took = house.settle()
        worst = max(worst, took)
        hold(f"round {number} of {rounds}: {what}", took)
    load.stop()
    house.audit.stop()
    wrong = house.audit.wrong + load.look(slow)
    check(not wrong, wrong[:20])
    check(load.right > answers_of_growth and load.right_once > 0, (load.right, load.right_once, dict(load.told)))
    check(min(house.audit.looks.values()) > rounds, house.audit.looks)
    house.ask_once("delete", name=NAME)
    leases = [one for machine in house.machines for one in machine.daemon.leases()]
    check(leases == [], leases)
    print(f"{rounds} rounds; {load.right} answers, told errors {dict(load.told)}; settled in at most {worst:.1f} s")


def main() -> None:
    atoll, bundle, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    rounds, seed = int(os.environ.get("ATOLL_ROUNDS", "5")), int(os.environ.get("ATOLL_SEED", "1"))
    adopt_orphans()
    # The paths of Ray's sockets must be short.
    temporary = Path(tempfile.mkdtemp(prefix="ar", dir="/tmp"))
    try:
        play(House(atoll, bundle, folder, temporary, seed), rounds)
    finally:
        end_all()
        shutil.rmtree(temporary, ignore_errors=True)
    print("all of it holds")


if __name__ == "__main__":
    main()
