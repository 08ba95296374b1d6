#!/usr/bin/env python3
"""Rings from Python against a daemon that serves the functions `affine` and `faulty`.

ring.py SOCKET HTTP_ADDRESS   exits with 1 and prints the difference; needs the package `atoll`
"""

import json
import sys
import threading
import time
import urllib.request

import atoll
import numpy as np
from atoll import Ring


def refused(kind, word, call):
    try:
        call()
    except atoll.AtollError as error:
        assert type(error) is kind and word in str(error), f"{error!r}"
        return
    raise AssertionError(f"{kind.__name__} was expected")


def over_http(address, x, b):
    tensor = lambda name, array: {"name": name, "datatype": "FP32", "shape": list(array.shape), "data": array.tolist()}
    body = json.dumps({"inputs": [tensor("x", x), tensor("b", b)]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}/v2/models/affine/infer", body)) as answer:
        return np.array(json.load(answer)["outputs"][0]["data"], np.float32)


def main(socket, http):
    random = np.random.default_rng(1)
    x, b = (random.random(1000, np.float32) for _ in range(2))
    with Ring(socket, slots=2, arena_bytes=1 << 16) as ring:
        ring.ping()
        for spun in (x, x[::-1], np.asfortranarray(x)):
            answer = ring.infer("affine", {"x": spun, "b": b}, priority=1)
            assert list(answer) == ["y"] and answer["y"].dtype == np.float32
            assert np.array_equal(answer["y"], over_http(http, spun, b))
        answer["y"][0] = 1  # an array of its own

        # Several requests at one time, received in another order.
        first, second = (ring.send("affine", {"x": each, "b": b}, outputs=["y"]) for each in (x, b))
        refused(atoll.RingFull, "2 slots", lambda: ring.send("affine", {"x": x, "b": b}))
        assert np.array_equal(ring.receive(second)["y"], over_http(http, b, b))
        assert np.array_equal(ring.receive(first)["y"], over_http(http, x, b))
        refused(atoll.InvalidInput, "no request", lambda: ring.receive(first))
        assert ring.infer("affine", {"x": x[:0], "b": b[:0]})["y"].shape == (0,)

        refused(atoll.NotFound, "missing", lambda: ring.infer("missing", {}))
        refused(atoll.InvalidInput, "FP64", lambda: ring.infer("affine", {"x": x.astype(float), "b": b}))
        refused(atoll.InvalidInput, "BYTES", lambda: ring.infer("affine", {"x": np.array(["a", b"bc"], object), "b": b}))
        refused(atoll.InvalidInput, "needs input", lambda: ring.infer("affine", {"x": x}))
        refused(atoll.InvalidInput, "nothing", lambda: ring.infer("affine", {"x": x, "b": b}, outputs=["nothing"]))
        refused(atoll.InvalidInput, "priority", lambda: ring.infer("affine", {"x": x, "b": b}, priority=-1))
        refused(atoll.InvalidInput, "complex", lambda: ring.infer("affine", {"x": x.astype(complex), "b": b}))
        refused(atoll.RingFull, "larger arena", lambda: ring.infer("affine", {"x": np.zeros(1 << 20, np.float32), "b": b}))
        endless = {"mode": np.array([5], np.uint32)}
        refused(atoll.DeadlineExceeded, "", lambda: ring.infer("faulty", endless, deadline_us=20_000))
        assert ring.infer("faulty", {"mode": np.zeros(1, np.uint32)})["out"].shape == (64,)

    refused(atoll.ConnectionFailed, "closed", ring.ping)
    refused(atoll.ConnectionFailed, "/nowhere", lambda: Ring("/nowhere"))

    # A ring is used by one thread at a time.
    with Ring(socket) as ring:

        def hold():
            while True:
                try:
                    ring.infer("faulty", endless, deadline_us=2_000_000)
                except atoll.DeadlineExceeded:
                    return
                except atoll.InvalidInput as error:  # It came while the other thread pinged.
                    assert "another thread" in str(error), error

        slow = threading.Thread(target=hold)
        slow.start()
        for _ in range(1000):
            try:
                ring.ping()
            except atoll.InvalidInput as error:
                assert "another thread" in str(error), error
                break
            time.sleep(0.001)
        else:
            raise AssertionError("two threads used a ring")
        slow.join()
        ring.ping()

    # Each thread has a ring of its own.
    failures = []

    def work(seed):
        with Ring(socket, spin_us=0, daemon_spin_us=0) as ring:
            for _ in range(50):
                if not np.array_equal(ring.infer("affine", {"x": x * seed, "b": b})["y"], expected[seed]):
                    failures.append(seed)

    expected = {seed: over_http(http, x * np.float32(seed), b) for seed in (1, 2, 3)}
    threads = [threading.Thread(target=work, args=(np.float32(seed),)) for seed in expected]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures, failures


if __name__ == "__main__":
    main(*sys.argv[1:])
