"""An API server of Kubernetes in memory, as far as controllers need one: lists, watches, merge patches, finalizers,
subresources, optimistic locking, and the checks of our own definitions."""

import copy
import http.server
import json
import threading
import time
import urllib.parse
from pathlib import Path

import resource_slices
import yaml
from kubernetes_schema import filled, refusals, schema_of

CRDS = Path(__file__).resolve().parents[2] / "integrations/kubernetes/manifests/crds"
NOW = "2026-01-01T00:00:00Z"


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def merge(target, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merge(target.get(name), value)
    return target


def field(one, path):
    """The value of a field, as in `spec.nodeName`."""
    for name in path.split("."):
        one = one.get(name, {})
    return one


def selector(text):
    return dict(one.split("=") for one in (text or "").split(",") if one)


class ApiServer:
    """The resources, and the HTTP server that serves them."""

    def __init__(self):
        self.crds = {}
        for path in sorted(CRDS.glob("*.yaml")):
            crd = yaml.safe_load(path.read_text())
            self.crds[crd["spec"]["names"]["plural"]] = crd
        self.objects = {}
        self.version = 0
        #: Versions up to this one are forgotten: watches that ask for them are told to list again.
        self.oldest = 0
        self.changes = []
        # Its lock may be taken again by the thread that has it.
        self.changed = threading.Condition()
        #: Requests: method, kind of resources, and whether it is a watch.
        self.requests = []
        #: Rights that requests over HTTP needed: verb and resource.
        self.used = set()
        #: Features of the API server, and versions of resource.k8s.io.
        self.features, self.versions = {resource_slices.CAPACITY, resource_slices.COUNTERS}, ["v1", "v1beta2"]
        #: Whether resources are checked. Without it one of an older definition can be stored.
        self.checks = True
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    # The resources. All of these are called with the lock.

    def _store(self, key, one):
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        is_gone = "deletionTimestamp" in one["metadata"] and not one["metadata"].get("finalizers")
        kind = "DELETED" if is_gone else "MODIFIED" if key in self.objects else "ADDED"
        if is_gone:
            self.objects.pop(key, None)
        else:
            self.objects[key] = one
        self.changes.append((self.version, key[0], kind, copy.deepcopy(one)))
        self.changed.notify_all()
        return copy.deepcopy(one)

    def _check(self, plural, one, old=None):
        if plural in self.crds:
            found = refusals(self.crds[plural], one, old) if self.checks else []
            if found:
                raise Refused(422, "; ".join(found))
            return filled(schema_of(self.crds[plural]), one)
        if plural == "resourceslices":
            try:
                return resource_slices.stored(one, self.features)
            except (AssertionError, KeyError, ValueError) as error:
                raise Refused(422, f"{type(error).__name__}: {error}") from error
        return one

    def _get(self, key):
        if key not in self.objects:
            raise Refused(404, f"{key} is not found")
        return copy.deepcopy(self.objects[key])

    def _match(self, one, version):
        if version is not None and version != one["metadata"]["resourceVersion"]:
            raise Refused(409, "the object has been modified; please apply your changes to the latest version")

    def create(self, plural, namespace, one, is_tried=False):
        """Creates a resource, or tells what it would be."""
        with self.changed:
            meta = one.setdefault("metadata", {})
            if "generateName" in meta:
                meta["name"] = f"{meta['generateName']}{self.version:x}"
            if namespace:
                meta["namespace"] = namespace
            key = (plural, namespace, meta["name"])
            if key in self.objects:
                raise Refused(409, f"{key} already exists")
            one = self._check(plural, one)
            one["metadata"] |= {"uid": f"00000000-0000-0000-0000-{self.version:012x}", "generation": 1}
            one["metadata"]["creationTimestamp"] = NOW
            if plural in self.crds:
                one.pop("status", None)
            return one if is_tried else self._store(key, one)

    def patch(self, plural, namespace, name, patch, part=None):
        """Changes a resource, or only its status."""
        with self.changed:
            key = (plural, namespace, name)
            old = self._get(key)
            self._match(old, patch.get("metadata", {}).get("resourceVersion"))
            if part == "status":
                patch = {"status": patch.get("status")}
            elif plural in self.crds:
                patch = {name: value for name, value in patch.items() if name != "status"}
            one = self._check(plural, merge(old, patch), old)
            if one == old:
                return one
            if one.get("spec") != old.get("spec"):
                one["metadata"]["generation"] += 1
            return self._store(key, one)

    def replace(self, plural, namespace, name, one):
        with self.changed:
            key = (plural, namespace, name)
            old = self._get(key)
            self._match(old, one["metadata"].get("resourceVersion"))
            one = self._check(plural, one, old)
            one["metadata"] = old["metadata"] | one["metadata"]
            return self._store(key, one)

    def delete(self, plural, namespace, name, uid=None):
        with self.changed:
            key = (plural, namespace, name)
            one = self._get(key)
            if uid is not None and uid != one["metadata"]["uid"]:
                raise Refused(409, "the UID in the precondition does not match")
            if "deletionTimestamp" in one["metadata"]:
                return one
            one["metadata"]["deletionTimestamp"] = NOW
            return self._store(key, one)

    def all(self, plural, namespace=None, labels=None, fields=None):
        with self.changed:
            found = [one for (of, at, _), one in self.objects.items() if of == plural and namespace in (None, at)]
            found = [one for one in found if all(field(one, path) == value for path, value in (fields or {}).items())]
            return copy.deepcopy([one for one in found if self._has(one, labels)])

    def _has(self, one, labels):
        return (labels or {}).items() <= one["metadata"].get("labels", {}).items()

    def forget(self):
        """Forgets all versions so far and ends all watches, as after a compaction."""
        with self.changed:
            self.oldest = self.version
            self.changes = []
            self.changed.notify_all()

    def watch(self, plural, labels, since, seconds):
        """Yields changes as lines of JSON."""
        until = time.monotonic() + seconds
        while True:
            with self.changed:
                if since < self.oldest:
                    status = {"kind": "Status", "code": 410, "message": "too old resource version"}
                    yield {"type": "ERROR", "object": status}
                    return
                found = [one for one in self.changes if one[0] > since and one[1] == plural]
                if not found:
                    left = until - time.monotonic()
                    if left <= 0:
                        return
                    self.changed.wait(min(left, 0.5))
            for version, _, kind, one in found:
                since = version
                if self._has(one, labels):
                    yield {"type": kind, "object": one}
            if not found:
                yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(since)}}}

    # HTTP.

    def _handler(self):
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def _answer(self, status, value):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _stream(self, values):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for value in values:
                    line = json.dumps(value).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def _serve(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                url = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(url.query))
                parts = url.path.strip("/").split("/")
                if url.path == "/apis/resource.k8s.io":
                    versions = [{"groupVersion": f"resource.k8s.io/{one}", "version": one} for one in api.versions]
                    return self._answer(200, {"kind": "APIGroup", "versions": versions})
                if parts[1] == "resource.k8s.io" and parts[2] not in api.versions:
                    return self._answer(404, {"kind": "Status", "code": 404, "message": "page not found"})
                # /api/v1/..., or /apis/GROUP/VERSION/...
                parts = parts[2:] if parts[0] == "api" else parts[3:]
                namespace = None
                if parts[0] == "namespaces" and len(parts) > 2:
                    namespace, parts = parts[1], parts[2:]
                plural, name, part = (*parts, None, None)[:3]
                verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
                read = "get" if name else "watch" if "watch" in query else "list"
                resource = f"{plural}/{part}" if part else plural
                with api.changed:
                    api.used.add((verbs.get(self.command, read), resource))
                    api.requests.append((self.command, plural, "watch" in query))
                try:
                    return self._carry_out(plural, namespace, name, part, query, body)
                except Refused as error:
                    status = {"kind": "Status", "code": error.status, "message": str(error)}
                    return self._answer(error.status, status)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                    return None

            def _carry_out(self, plural, namespace, name, part, query, body):
                if self.command == "GET" and name is not None:
                    with api.changed:
                        return self._answer(200, api._get((plural, namespace, name)))
                if self.command == "GET":
                    labels = selector(query.get("labelSelector"))
                    if "watch" in query:
                        since, seconds = int(query["resourceVersion"]), int(query["timeoutSeconds"])
                        return self._stream(api.watch(plural, labels, since, seconds))
                    with api.changed:
                        version = str(api.version)
                        items = api.all(plural, namespace, labels, selector(query.get("fieldSelector")))
                    return self._answer(200, {"metadata": {"resourceVersion": version}, "items": items})
                if self.command == "POST":
                    return self._answer(201, api.create(plural, namespace, body, "dryRun" in query))
                if self.command == "PUT":
                    return self._answer(200, api.replace(plural, namespace, name, body))
                if self.command == "PATCH":
                    assert self.headers["Content-Type"] == "application/merge-patch+json", self.headers
                    return self._answer(200, api.patch(plural, namespace, name, body, part))
                uid = ((body or {}).get("preconditions") or {}).get("uid")
                return self._answer(200, api.delete(plural, namespace, name, uid))

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        return Handler
