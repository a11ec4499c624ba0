"""What an etcd may answer that was not asked for."""

import base64
import http.server
import json
import subprocess
import threading

import pytest

from serving import LIMIT, MUSTER, environment

HEADER = {"cluster_id": "1", "member_id": "1", "revision": "5"}


class Etcd(http.server.BaseHTTPRequestHandler):
    """Grants every lease, and has one key, whatever is asked for."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = {"header": HEADER, "ID": "7", "TTL": "10"}
        if "range" in self.path:
            self.server.asked += 1
            answer = {"header": HEADER, "count": "1",
                      "kvs": [{"key": self.server.key, "create_revision": "3", "mod_revision": "3", "version": "1"}]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def etcd():
    """Starts such servers; returns them, with how often they were asked for keys."""
    servers = []

    def start(key):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Etcd)
        server.key, server.asked = base64.b64encode(key).decode(), 0
        servers.append((server, threading.Thread(target=server.serve_forever, daemon=True)))
        servers[-1][1].start()
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join(LIMIT)
        server.server_close()


@pytest.mark.parametrize("key", [b"a", b"", b"/another/prefix/that/is/long/enough"])
def test_keys_of_others_are_nobody_s(etcd, absent, key):
    server = etcd(key)
    node = subprocess.run([MUSTER, "join", "--rdzv-backend", "etcd-v3", "--rdzv-endpoint",
                           f"127.0.0.1:{server.server_address[1]}", "--rdzv-id", "x", "--nnodes", "1", "--rdzv-conf",
                           "join_timeout=2"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT,
                          env=environment(), check=False)
    if not server.asked and "libcurl" in node.stderr:
        absent(node.stderr)
    assert server.asked > 0
    assert node.returncode > 0, node.stderr  # an error of ours, no signal
    assert "Assertion" not in node.stderr
