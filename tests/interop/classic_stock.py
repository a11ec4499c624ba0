"""One node of the classic etcd rendezvous by stock PyTorch 1.13, driven by JSON lines on standard input.

One line asks for one thing, one line answers it, as in rdzv_stock.py:

    {"id": 1, "do": "create", "endpoint": "127.0.0.1:2379", "run_id": "r", "min": 2, "max": 4, "options": {...}}
    {"id": 2, "do": "next"}
    {"id": 2, "ok": true, "rank": 0, "world_size": 2, "round": 1}

The handler is PyTorch's, unchanged. The process ends when its standard input does.
"""

import base64
import gc
import json
import os
import sys

# Standard output carries answers only; whatever the library prints goes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import etcd_rendezvous
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore


def encoded(value):
    return base64.b64encode(value).decode()


class Node:
    def __init__(self):
        self.handler = self.store = None

    def create(self, request):
        params = RendezvousParameters("etcd", request["endpoint"], request["run_id"], request["min"], request["max"],
                                      **request.get("options", {}))
        self.handler = etcd_rendezvous.create_rdzv_handler(params)

    def next(self, request):
        self.store, rank, world_size = self.handler.next_rendezvous()
        if rank == 0:  # what its agent does with each new round
            SimpleElasticAgent._set_master_addr_port(self.store, None, None)
        addr, port = SimpleElasticAgent._get_master_addr_port(self.store)
        version = self.store.prefix.rstrip("/").split("/")[-2].removeprefix("v_")
        return {"rank": rank, "world_size": world_size, "round": int(version), "addr": addr, "port": port}

    def is_closed(self, request):
        return {"closed": self.handler.is_closed()}

    def set_closed(self, request):
        self.handler.set_closed()

    def shutdown(self, request):
        return {"closed": self.handler.shutdown()}

    def waiting(self, request):
        return {"count": self.handler.num_nodes_waiting()}

    def open_store(self, request):
        """An EtcdStore anywhere."""
        self.store = EtcdStore(self.handler._rdzv_impl.client, request["prefix"])

    def set(self, request):
        self.store.set(request["key"], request["value"])

    def get(self, request):
        return {"value": self.store.get(request["key"]).decode()}

    def get_bytes(self, request):
        return {"value": encoded(self.store.get(base64.b64decode(request["key"])))}

    def set_bytes(self, request):
        self.store.set(base64.b64decode(request["key"]), base64.b64decode(request["value"]))

    def add(self, request):
        return {"count": self.store.add(request["key"], int(request["value"]))}

    def wait(self, request):
        import datetime
        self.store.wait(request["keys"], datetime.timedelta(seconds=request.get("seconds", 20)))

    def check(self, request):
        return {"found": self.store.check(request["keys"])}

    def store_extra(self, request):
        self.handler._rdzv_impl.store_extra_data(request["round"], request["key"], request["value"])

    def load_extra(self, request):
        return {"value": self.handler._rdzv_impl.load_extra_data(request["round"], request["key"])}

    def forget(self, request):
        """Its leases end with it."""
        self.handler = self.store = None
        gc.collect()


def main():
    node = Node()
    ANSWERS.write(json.dumps({"id": 0, "ok": True, "pid": os.getpid()}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(node, request["do"])(request) or {}
            answer["ok"] = True
        except Exception as error:  # the answer is what this library raises
            answer = {"ok": False, "error": type(error).__name__, "text": str(error)[:4000]}
        answer["id"] = request["id"]
        ANSWERS.write(json.dumps(answer) + "\n")
    os._exit(0)  # lease threads do not keep it


main()
