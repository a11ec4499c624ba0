#!/usr/bin/env python3
"""Writes a recording of a stock PyTorch talking to its own store server.

    record_tcpstore.py --python build/venv-torch2/bin/python --backend libuv OUTPUT

The first line of the recording holds what each Python call returned or raised; every
further line is one chunk of bytes as it passed, with the connection (numbered in the
order they were made), its direction (">" from the client) and the call it belongs to.
"""

import argparse
import json
import os

import harness
import scenario


def record(python, backend):
    server, client = harness.Driver(python), harness.Driver(python)
    proxy = pulse = None
    try:
        modern = not server.version.startswith("1.")
        options = {"use_libuv": backend == "libuv"} if modern else {}
        port = server.host(**options)
        pulse = harness.Pulse(port, modern)
        proxy = harness.Proxy(port)
        talk = scenario.Conversation(client, proxy, pulse, queues=backend == "libuv")
        results = scenario.everything(talk)
        head = {"version": client.version, "libuv": backend == "libuv", "results": results}
        return [json.dumps(head)] + [chunk.as_json() for chunk in proxy.chunks]
    finally:
        client.stop()
        server.stop()
        if proxy:
            proxy.stop()
        if pulse:
            pulse.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="interpreter that has PyTorch")
    parser.add_argument("--backend", choices=("libuv", "legacy"), default="libuv")
    parser.add_argument("output", help="file to write")
    arguments = parser.parse_args()
    lines = record(os.path.abspath(arguments.python), arguments.backend)
    with open(arguments.output, "w", encoding="utf-8") as output:
        output.write("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} chunks written to {arguments.output}")


if __name__ == "__main__":
    main()
