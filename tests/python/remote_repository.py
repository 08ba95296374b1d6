#!/usr/bin/env python3
"""A daemon whose model repository is a folder of a web server.

remote_repository.py ATOLL BUNDLE FOLDER

ATOLL is the program, BUNDLE that of `tests/functions/affine.toml`, FOLDER an empty folder with a short path. Prints
what it checks, and ends with 0 if all of it holds. Ends the processes that it started, by their numbers.
"""

import functools
import hashlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from kubelet import Daemon, check, until


class Web:
    """A web server with a repository."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def publish(self, wrong=()):
        """Writes the listing. The digests of some files are wrong."""
        files = []
        for path in sorted(path for path in self.folder.rglob("*.kg")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            name = path.relative_to(self.folder).as_posix()
            digest = "0" * 64 if name in wrong else digest
            files.append({"path": name, "bytes": path.stat().st_size, "sha256": digest})
        # As a whole, since the daemon may read it at any time.
        (self.folder / "new.json").write_text(json.dumps({"files": files}))
        (self.folder / "new.json").rename(self.folder / "repository.json")

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Remote(Daemon):
    """A daemon with a repository on another machine."""

    def start_with(self, url):
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        names = ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")
        environment = os.environ | {name: str(self.folder) for name in names}
        environment.pop("ATOLL_CONTROL_SOCKET", None)
        arguments = ["serve", "--http-port", str(self.port), "--no-grpc", "--metrics-port", "0", "--compute-units", "2"]
        arguments += ["--memory-limit", "256M", "--model-repository", url, "--ready-file", str(ready)]
        arguments += ["--model-control-mode", "poll", "--repository-poll-secs", "1"]
        with open(self.folder / "daemon.log", "a") as log:
            self.process = subprocess.Popen([self.atoll, *arguments], env=environment, stdout=log, stderr=log)
        until("the daemon is ready", ready.exists, self.process)

    def log(self):
        return (self.folder / "daemon.log").read_text()

    def has(self, model):
        return self.ask("GET", f"/v2/models/{model}")[0] == 200

    def infer(self, model):
        vector = {"datatype": "FP32", "shape": [2], "data": [1, 2]}
        body = {"inputs": [{"name": name, **vector} for name in "xb"]}
        status, answer = self.ask("POST", f"/v2/models/{model}/infer", body)
        check(status == 200 and answer["outputs"][0]["data"] == [4, 8], (status, answer))


def main():
    atoll, bundle, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    folder.mkdir(exist_ok=True)
    # A proxy of this machine has no business with loopback.
    os.environ["no_proxy"] = "*"
    web, daemon = Web(folder / "web"), Remote(atoll, folder / "d")
    # Requests are repeated for 15 s before they fail. Two daemons wait for that at the same time.
    other_web, other = Web(folder / "v"), Remote(atoll, folder / "e")
    try:
        print("models of a web server are served")
        shutil.copy(bundle, web.folder / "affine.kg")
        web.publish()
        daemon.start_with(web.url)
        daemon.infer("affine")

        print("new ones are loaded, and those that are gone are unloaded")
        shutil.copy(bundle, web.folder / "other.kg")
        web.publish()
        until("the new model is there", lambda: daemon.has("other"), daemon.process)
        daemon.infer("other")
        (web.folder / "other.kg").unlink()
        web.publish()
        until("the model is gone", lambda: not daemon.has("other"), daemon.process)

        shutil.copy(bundle, other_web.folder / "affine.kg")
        other_web.publish()
        other.start_with(other_web.url)
        other.infer("affine")
        other.kill()
        other_web.stop()

        shutil.copy(bundle, web.folder / "wrong.kg")
        web.publish(wrong=["wrong.kg"])
        print("a daemon starts with the files of the last time if the server is away")
        other.start_with(other_web.url)
        other.infer("affine")
        check("the files of an earlier start are used" in other.log(), other.log()[-2000:])

        print("a wrong digest is told, and what is served stays")
        until("it is told", lambda: "wrong.kg: expected digest" in daemon.log(), daemon.process)
        check(not daemon.has("wrong"), "a model with a wrong digest is served")
        daemon.infer("affine")
    except BaseException:
        for one in (daemon, other):
            if (one.folder / "daemon.log").exists():
                print(one.log()[-8000:], file=sys.stderr)
        raise
    finally:
        for one in (daemon, other):
            if one.process is not None and one.process.poll() is None:
                one.kill()
    print("all of it holds")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
