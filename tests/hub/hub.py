#!/usr/bin/env python3
"""A hub for tests: serves ROOT/ORG/NAME as the Hugging Face hub would, on loopback, with the faults that a file names.

hub.py ROOT FAULTS LOG PORT_FILE [PORT CERTIFICATE]
    one line of LOG per request; the port goes to PORT_FILE once it listens. With a certificate (and its key, one file) it
    speaks TLS.

FAULTS is read at every request; each line is one of
  break N          bodies of files end after N bytes, and the connection with them
  slow N           N bytes per second
  busy N           N requests of files in all are answered with 429 first
  norange          ranges are not known
  redirect URL     files are at URL/cdn/... (another host's name: tokens must stay behind)
  loop             files are where they were asked for, over and over
  token T          without it there is nothing to see
  pages            the list of files comes two at a time
  size NAME        the list has another size for the file
  hash NAME        a byte of the file is another one
  hash-once NAME   ... the first time
  path TEXT        the list has a file called so
"""
import hashlib
import http.server
import json
import os
import ssl
import sys
import time
import urllib.parse

ROOT, FAULTS, LOG, PORT_FILE = sys.argv[1:5]
PORT = int(sys.argv[5]) if len(sys.argv) > 5 else 0
COMMIT = "0123456789abcdef0123456789abcdef01234567"
state = {"busy": 0, "once": set()}
known = {}  # hashes of files, which may be large


def faults():
    found = {}
    try:
        for line in open(FAULTS):
            word, _, rest = line.strip().partition(" ")
            if word:
                found[word] = rest
    except FileNotFoundError:
        pass
    return found


def hashes(full):
    s = os.stat(full)
    key = (full, s.st_size, s.st_mtime_ns)
    if key not in known:
        git, sha = hashlib.sha1(b"blob %d\0" % s.st_size), hashlib.sha256()
        with open(full, "rb") as file:
            while block := file.read(1 << 20):
                git.update(block)
                sha.update(block)
        known[key] = s.st_size, git.hexdigest(), sha.hexdigest()
    return known[key]


def entry(base, path, f):
    size, git, sha = hashes(os.path.join(base, path))
    told = size + (1 if f.get("size") == path else 0)
    item = {"type": "file", "path": path, "size": told, "oid": git}
    if size > 2000:  # as large files are kept elsewhere
        item["lfs"] = {"oid": sha, "size": told, "pointerSize": 134}
    return item


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        f = faults()
        url = urllib.parse.urlsplit(self.path)
        parts = [urllib.parse.unquote(p) for p in url.path.split("/")[1:]]
        token = self.headers.get("Authorization")
        with open(LOG, "a") as log:
            log.write(f"{self.headers.get('Host')} {url.path} {self.headers.get('Range')} {'token' if token else '-'}\n")
        if parts[0] != "cdn" and "token" in f and token != "Bearer " + f["token"]:
            return self.answer(401, b"{}")
        if parts[:2] == ["api", "models"] and len(parts) >= 6:
            return self.api(f, parts, url)
        if len(parts) >= 5 and parts[2] == "resolve" and parts[3] == COMMIT:
            name, path = "/".join(parts[:2]), "/".join(parts[4:])
            if "loop" in f:
                return self.answer(302, b"over there", [("Location", self.path)])
            if "redirect" in f:
                where = f["redirect"] + "/cdn/" + name + "/" + path
                return self.answer(302, b"over there", [("Location", where)])
            return self.file(f, name, path)
        if parts[0] == "cdn" and len(parts) >= 4:
            return self.file(f, "/".join(parts[1:3]), "/".join(parts[3:]))
        return self.answer(404, b"nothing here")

    def api(self, f, parts, url):
        base = os.path.join(ROOT, parts[2], parts[3])
        if not os.path.isdir(base):
            return self.answer(404, b"{}")
        if parts[4] == "revision":
            return self.answer(200, json.dumps({"sha": COMMIT, "id": "/".join(parts[2:4])}).encode())
        paths = sorted(os.path.relpath(os.path.join(d, n), base) for d, _, names in os.walk(base) for n in names)
        items = [entry(base, p, f) for p in paths]
        if "path" in f:
            items.append({"type": "file", "path": f["path"], "size": 3, "oid": "0" * 40})
        headers = []
        if "pages" in f:
            at = int(urllib.parse.parse_qs(url.query).get("cursor", ["0"])[0])
            if at + 2 < len(items):
                here = f"http://{self.headers.get('Host')}{url.path}?recursive=true&cursor={at + 2}"
                headers = [("Link", f'<{here}>; rel="next"')]
            items = items[at:at + 2]
        return self.answer(200, json.dumps(items).encode(), headers)

    def file(self, f, name, path):
        full = os.path.join(ROOT, name, path)
        if not os.path.isfile(full):
            return self.answer(404, b"no such file")
        if state["busy"] < int(f.get("busy", 0)):
            state["busy"] += 1
            return self.answer(429, b"not so fast", [("Retry-After", "0")])
        size, first, last = os.path.getsize(full), 0, None
        asked = self.headers.get("Range")
        if asked and "norange" not in f:
            a, _, b = asked.removeprefix("bytes=").partition("-")
            first, last = int(a), int(b) if b else None
            if first >= size:
                return self.answer(416, b"", [("Content-Range", f"bytes */{size}")])
        end = size if last is None else min(last + 1, size)
        self.send_response(206 if asked and "norange" not in f else 200)
        self.send_header("Content-Length", str(end - first))
        self.send_header("ETag", '"x"')
        if asked and "norange" not in f:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
        self.end_headers()
        flip = f.get("hash") == path or (f.get("hash-once") == path and path not in state["once"])
        with open(full, "rb") as source:
            source.seek(first)
            self.body(f, source, first, end, size - 1 if flip else -1, path)

    def body(self, f, source, first, end, flip, path):
        slow = int(f.get("slow", 0))
        left = min(end - first, int(f["break"])) if "break" in f else end - first
        at = first
        while left > 0:
            block = bytearray(source.read(min(left, slow // 20 + 1 if slow else 1 << 20)))
            if not block:
                break
            if at <= flip < at + len(block):
                block[flip - at] ^= 1
                state["once"].add(path)
            self.wfile.write(block)
            at += len(block)
            left -= len(block)
            if slow:
                time.sleep(0.05)
        if at < end:
            self.wfile.flush()
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that was killed


server = Server(("127.0.0.1", PORT), Handler)
if len(sys.argv) > 6:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[6])
    server.socket = context.wrap_socket(server.socket, server_side=True)
with open(PORT_FILE + ".new", "w") as out:
    out.write(str(server.server_address[1]))
os.rename(PORT_FILE + ".new", PORT_FILE)
server.serve_forever()
