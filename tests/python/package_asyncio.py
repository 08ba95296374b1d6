#!/usr/bin/env python3
"""The client of the Python package for asyncio: it does not block the loop, and a cancelled task cancels its request.

package_asyncio.py FOLDER   exits with 1 and prints the difference; FOLDER has the bundles affine.kg and faulty.kg
"""

import asyncio
import re
import sys
import threading
import urllib.request
from pathlib import Path

import atoll
import numpy as np
from package import same, vectors

ENDLESS = {"mode": np.array([5], np.uint32)}


async def refused(kind, awaitable):
    try:
        await awaitable
    except atoll.AtollError as error:
        assert type(error) is kind, f"{error!r}"
        return
    raise AssertionError(f"{kind.__name__} was expected")


def cancelled(server):
    """How many inference requests the daemon has counted as cancelled."""
    text = urllib.request.urlopen(server.metrics).read().decode()
    return sum(int(float(each)) for each in re.findall(r'atoll_requests_total\{.*outcome="cancelled".*\} (\S+)', text))


async def timed_out(client):
    """A request that runs until its task is cancelled."""
    try:
        async with asyncio.timeout(0.1):
            await client.infer("faulty", ENDLESS)
    except TimeoutError as error:
        assert type(error) is TimeoutError, f"{error!r}"
        return
    raise AssertionError("an endless request has ended")


async def common(client):
    """What holds over HTTP and over the socket."""
    assert await client.live() and await client.ready() and await client.ready("affine")
    assert not await client.ready("missing")
    assert await client.functions() == ["affine", "faulty"]
    assert {each.name for each in await client.models()} == {"affine", "faulty"}
    assert [each.name for each in (await client.metadata("affine")).inputs] == ["b", "x"]
    # More requests than connections.
    given = [vectors(count + 1) for count in range(40)]
    answers = await asyncio.gather(*(client.infer("affine", {"x": x, "b": b}) for x, b in given))
    for (x, b), answer in zip(given, answers, strict=True):
        same(answer["y"], x, b)
    await refused(atoll.NotFound, client.infer("missing", {}))
    await refused(atoll.InvalidInput, client.infer("affine", {"x": np.ones(2), "b": np.ones(2)}))
    await refused(atoll.DeadlineExceeded, client.infer("faulty", ENDLESS, deadline=0.02))

    # The loop goes on while a request runs.
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    ticking = asyncio.create_task(tick())
    await refused(atoll.DeadlineExceeded, client.infer("faulty", ENDLESS, deadline=0.5))
    assert ticks > 1, "the loop was blocked"
    ticking.cancel()

    # A task that is cancelled cancels its request, and its turn goes to the next one.
    for _ in range(6):
        await timed_out(client)
    x, b = vectors(9)
    same((await client.infer("affine", {"x": x, "b": b}))["y"], x, b)
    # One that has not begun is cancelled as well.
    tasks = [asyncio.create_task(client.infer("faulty", ENDLESS)) for _ in range(8)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True))
    same((await client.infer("affine", {"x": x, "b": b}))["y"], x, b)


async def over_http(server):
    async with atoll.AsyncClient(server.url, connections=4) as client:
        await common(client)
        # The daemon notices it. A request may be cancelled before it is sent, so it is tried again.
        for _ in range(100):
            if cancelled(server):
                break
            await timed_out(client)
        else:
            raise AssertionError("no request was cancelled in the daemon")
        running = asyncio.create_task(client.infer("faulty", ENDLESS))
        await asyncio.sleep(0.1)
    # The end of the block ends what runs.
    await refused(atoll.ConnectionFailed, running)
    await refused(atoll.ConnectionFailed, client.infer("affine", {}))


async def over_the_socket(server):
    async with atoll.AsyncClient(server.socket, connections=4) as client:
        await common(client)
        x, b = vectors(7)
        stored = await client.put(b)
        assert np.array_equal(await client.get(stored), b) and stored in await client.objects()
        call = atoll.Call("affine", {"x": x, "b": stored}).then("affine", {"x": atoll.Output("y"), "b": stored})
        same((await client.run(call))["y"], 3 * x + b, b)
        first = await client.submit("affine", {"x": x, "b": b})
        second = await client.submit(atoll.Call("affine", {"x": first.output("y"), "b": b}))
        same((await second.result(60))["y"], 3 * x + b, b)
        assert await first.done() and (await client.future(first.name).status()).state == "done"
        await first.forget()
        await refused(atoll.NotFound, first.result())
        # A future continues if the task that waits for it is cancelled.
        endless = await client.submit("faulty", ENDLESS)
        try:
            async with asyncio.timeout(0.1):
                await endless.result()
        except TimeoutError:
            assert (await endless.status()).state == "running"
        await endless.cancel()
        assert (await endless.status()).state == "failed"
        await client.remove_object(stored)
        # Everything else.
        assert await client.use(lambda sync: sync.graphs()) == []
        assert await client.load(server.folder.parent / "affine.kg", "loaded") == "loaded"
        await client.unload("loaded")
    assert not [each for each in threading.enumerate() if each.name.startswith("atoll")], "its threads have ended"


async def lost(server):
    """Connections that were lost are not used again."""
    async with atoll.AsyncClient(server.socket, connections=1) as client:
        assert await client.functions() == ["affine", "faulty"]
        server.stop()
        await refused(atoll.ConnectionFailed, client.functions())
        await refused(atoll.ConnectionFailed, client.functions())
        assert not await client.live()


async def restarted(folder, options):
    """Whether a daemon answers is asked of the one that runs, also if the connections are those of an earlier one."""
    server = atoll.serve(folder=folder, options=options)
    async with atoll.AsyncClient(server.socket, connections=3) as client:
        try:
            assert all(await asyncio.gather(*(client.live() for _ in range(3))))
            server.stop()
            server = atoll.serve(folder=folder, options=options)
            assert await client.live() and await client.ready() and await client.ready("affine")
            assert await client.functions() == ["affine", "faulty"]
            server.stop()
            assert not await client.live() and not await client.ready()
            server = atoll.serve(folder=folder, options=options)
            assert await client.ready() and await client.live()
        finally:
            server.stop()


def main(folder):
    options = ["--memory-limit", "256M"]
    with atoll.serve(folder / "affine.kg", folder / "faulty.kg", folder=folder / "web", options=options) as server:
        asyncio.run(over_http(server))
    with atoll.serve(folder=folder / "control", options=options) as server:
        with server.control() as client:
            for name in ("affine", "faulty"):
                client.load(folder / f"{name}.kg")
        asyncio.run(over_the_socket(server))
        asyncio.run(lost(server))
    asyncio.run(restarted(folder / "control", options))
    print("all of it holds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
