"""Oracle of the cluster simulation, written with simpy: policies of the KaaS scheduling thesis in whole steps.

    cluster.py CASES.json

Prints the schedule of each case as JSON: a sorted list of [start, arrival, function, device], and the number of moves.
Shares no code with the simulation: requests, devices and the dispatcher are simpy processes. The dispatcher acts in
the middle of each step, after all arrivals and ends of that step.
"""

import json
import sys

import simpy

MASK = (1 << 64) - 1
# A step of the simulation in nanoseconds; buckets of mlfqs are powers of two of nanoseconds.
STEP_NS = 1_000_000
STEAL_PERCENT = 150


class SplitMix64:
    """Vigna's generator."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


class Cluster:
    """Devices, a queue, and a policy."""

    def __init__(self, case):
        self.case = case
        self.env = simpy.Environment()
        self.functions = case["functions"]
        self.count = case["devices"]
        self.busy = [False] * self.count
        self.loaded = [set() for _ in range(self.count)]
        self.queue = []  # (arrival, sequence, function) of all requests that are visible
        self.random = SplitMix64(case["seed"])
        self.drawn = None
        self.cursor = 0
        groups = len(self.functions)
        self.lists = [[] for _ in range(groups)]
        for device in range(self.count):
            self.lists[device * groups // self.count].append(device)
        self.schedule, self.moves, self.left = [], 0, len(case["arrivals"])
        ahead = case["look_ahead"]
        for sequence, (arrival, function) in enumerate(case["arrivals"]):
            seen = max(0, arrival - ahead)
            self.env.process(self.announce(seen, (arrival, sequence, function)))
        self.env.process(self.dispatcher())

    def announce(self, seen, request):
        yield self.env.timeout(seen)
        self.queue.append(request)

    def run_on(self, device, duration):
        yield self.env.timeout(duration)
        self.busy[device] = False
        self.left -= 1

    def dispatcher(self):
        yield self.env.timeout(0.5)
        while self.left:
            step = int(self.env.now)
            if self.case["policy"] == "exclusive" and self.case["steal"]:
                self.steal(step)
            while (pair := self.choose(step)) is not None:
                self.start(step, *pair)
            yield self.env.timeout(1)

    def start(self, step, request, device):
        arrival, _, function = request
        self.queue.remove(request)
        cold, run = self.functions[function]
        duration = run if function in self.loaded[device] else cold + run
        self.loaded[device].add(function)
        self.busy[device] = True
        self.cursor = device + 1
        self.schedule.append([step, arrival, function, device])
        # The dispatcher acts half a step later than the device.
        self.env.process(self.run_on(device, duration - 0.5))

    def free(self):
        """The next free device after that of the last dispatch."""
        order = [(self.cursor + i) % self.count for i in range(self.count)]
        return next((device for device in order if not self.busy[device]), None)

    def choose(self, step):
        if not self.queue:
            return None
        return getattr(self, self.case["policy"].replace("-", "_"))(step)

    def round_robin(self, step):
        device = self.cursor % self.count
        return None if self.busy[device] else (min(self.queue), device)

    def balance(self, step):
        device = self.free()
        return None if device is None else (min(self.queue), device)

    def srtf(self, step):
        device = self.free()
        head = min(self.queue, key=lambda request: (self.functions[request[2]][1], request))
        return None if device is None or head[0] > step else (head, device)

    def mlfqs(self, step):
        device = self.free()
        if device is None:
            return None
        buckets = {}
        for request in sorted(self.queue):
            bucket = (self.functions[request[2]][1] * STEP_NS).bit_length()
            buckets.setdefault(bucket, request)
        names = sorted(buckets)
        if self.drawn not in names:
            self.drawn = names[self.random.next() % len(names)] if len(names) > 1 else names[0]
        head = buckets[self.drawn]
        if head[0] > step:
            return None
        self.drawn = None
        return head, device

    def depth(self, group):
        return sum(1 for request in self.queue if request[2] == group)

    def steal(self, step):
        groups = range(len(self.lists))
        taker = max(groups, key=lambda group: (self.depth(group), -group))
        idle = {group: next((d for d in self.lists[group] if not self.busy[d]), None) for group in groups}
        donors = [g for g in groups if g != taker and len(self.lists[g]) > 1 and idle[g] is not None]
        if not donors:
            return
        donor = min(donors, key=lambda group: (self.depth(group), group))
        if self.depth(taker) * 100 > max(self.depth(donor), 1) * STEAL_PERCENT:
            self.lists[donor].remove(idle[donor])
            self.lists[taker].append(idle[donor])
            self.moves += 1

    def exclusive(self, step):
        for group, devices in enumerate(self.lists):
            own = sorted(request for request in self.queue if request[2] == group)
            device = next((device for device in devices if not self.busy[device]), None)
            if own and device is not None:
                return own[0], device
        return None


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        cases = json.load(file)
    answers = []
    for case in cases:
        cluster = Cluster(case)
        cluster.env.run()
        answers.append({"schedule": sorted(cluster.schedule), "moves": cluster.moves})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
