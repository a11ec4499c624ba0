"""One node of a dynamic rendezvous by stock PyTorch, driven by JSON lines on standard input.

Runs under the interpreter of either version.  One line asks for one thing, one line answers it:

    {"id": 1, "do": "create", "endpoint": "127.0.0.1:29400", "run_id": "r", "min": 2, "max": 4,
     "name": "127.0.0.1", "options": {"is_host": true, "last_call_timeout": 2}}
    {"id": 2, "do": "next"}
    {"id": 2, "ok": true, "rank": 0, "world_size": 2, "round": 0, "addr": "...", "port": 1, ...}
    {"id": 3, "do": "next"}
    {"id": 3, "ok": false, "error": "RendezvousClosedError", "text": ""}

What the handler is asked runs on one thread, in order; what only looks (`document`, `decode`) runs
on another, on a connection of its own, so that it works while the handler is inside a call.

The handler is PyTorch's, unchanged.  Two things stand for what a test on one machine lacks: `name`
is the machine's name (1.13 has no other way to be told than socket.getfqdn()), and versions whose
keep-alive times are constants of from_backend() get their settings object with others in it.
The process ends when its standard input does, so that it never outlives whoever started it.
"""

import base64
import datetime
import gc
import json
import os
import pickle
import queue
import socket
import sys
import threading

# Standard output carries answers only; whatever the library prints goes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import torch
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous

ANSWER_LOCK = threading.Lock()
OLD = torch.__version__.startswith("1.")


class Lane:
    """A thread that does what it is asked, in order."""

    def __init__(self, actions):
        self._actions = actions
        self._requests = queue.Queue()
        threading.Thread(target=self._serve, daemon=True).start()

    def put(self, request):
        self._requests.put(request)

    def _serve(self):
        while True:
            request = self._requests.get()
            try:
                answer = self._actions[request["do"]](request) or {}
                answer["ok"] = True
            except Exception as error:  # the answer is what this library raises
                answer = {"ok": False, "error": type(error).__name__, "text": str(error)[:4000]}
            answer["id"] = request["id"]
            tell(answer)


def tell(answer):
    with ANSWER_LOCK:
        ANSWERS.write(json.dumps(answer) + "\n")
        ANSWERS.flush()


# ---- Documents ----

def time_text(value):
    return None if value is None else value.isoformat()


def describe(state):
    """A document by its values; nodes as [name, pid, local_id]."""
    def node(n):
        return [n.fqdn if OLD else n.addr, n.pid, n.local_id]

    assert type(state) is dynamic_rendezvous._RendezvousState, type(state)
    for nodes in (state.participants, state.last_heartbeats, state.wait_list):
        for n in nodes:
            assert type(n) is dynamic_rendezvous._NodeDesc and n in nodes
    told = {
        "round": state.round, "complete": state.complete, "closed": state.closed,
        "deadline": time_text(state.deadline),
        "participants": [node(n) + [rank] for n, rank in state.participants.items()],
        "wait_list": sorted(node(n) for n in state.wait_list),
        "last_heartbeats": [node(n) + [time_text(t)] for n, t in state.last_heartbeats.items()],
    }
    if hasattr(state, "redundancy_list"):
        told["redundancy_list"] = sorted(node(n) for n in state.redundancy_list)
    return told


def build(told):
    """The opposite of describe()."""
    state = dynamic_rendezvous._RendezvousState()
    nodes = {}

    def node(values):
        key = tuple(values[:3])
        if key not in nodes:
            nodes[key] = dynamic_rendezvous._NodeDesc(*key)
        return nodes[key]

    def moment(text):
        return None if text is None else datetime.datetime.fromisoformat(text)

    state.round, state.complete, state.closed = told["round"], told["complete"], told["closed"]
    state.deadline = moment(told["deadline"])
    state.participants = {node(n): n[3] for n in told["participants"]}
    state.wait_list = {node(n) for n in told["wait_list"]}
    if hasattr(state, "redundancy_list"):
        state.redundancy_list = {node(n) for n in told.get("redundancy_list", [])}
    state.last_heartbeats = {node(n): moment(n[3]) for n in told["last_heartbeats"]}
    return state


# ---- The handler ----

class Node:
    def __init__(self):
        self.handler = self.store = self.round_store = None

    def create(self, request):
        options = dict(request.get("options", {}))
        name = request["name"]
        if OLD:
            socket.getfqdn = lambda *ignored: name
        else:
            options["local_addr"] = name
        local_addr = options.pop("local_addr", None)
        further = {} if local_addr is None else {"local_addr": local_addr}
        params = RendezvousParameters(request.get("backend", "c10d"), request["endpoint"], request["run_id"],
                                      request["min"], request["max"], **further, **options)
        if params.backend == "etcd-v2":
            from torch.distributed.elastic.rendezvous import etcd_rendezvous_backend as backends
        else:
            backends = c10d_rendezvous_backend
        backend, self.store = backends.create_backend(params)
        handler = dynamic_rendezvous.create_handler(self.store, backend, params)
        wanted = options.get("keep_alive_interval", 5)
        if handler.settings.keep_alive_interval != datetime.timedelta(seconds=wanted):
            handler = self.with_keep_alive(handler, backend, options)
        self.handler = handler
        return {"port": getattr(self.store, "port", 0), "pid": os.getpid(), "node": self.me()}

    def with_keep_alive(self, handler, backend, options):
        old = handler.settings
        settings = dynamic_rendezvous.RendezvousSettings(
            old.run_id, old.min_nodes, old.max_nodes, old.timeout,
            datetime.timedelta(seconds=options["keep_alive_interval"]),
            options["keep_alive_max_attempt"])
        holder = dynamic_rendezvous._BackendRendezvousStateHolder(backend, settings)
        return dynamic_rendezvous.DynamicRendezvousHandler(
            handler._this_node, settings, backend.name, self.store, holder)

    def me(self):
        node = self.handler._this_node
        return [node.fqdn if OLD else node.addr, node.pid, node.local_id]

    def next(self, request):
        result = self.handler.next_rendezvous()
        if isinstance(result, tuple):  # before 2.4
            from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
            store, rank, world_size = result
            if rank == 0:  # what its agent does with each new round
                local_addr = () if OLD else (self.me()[0],)
                SimpleElasticAgent._set_master_addr_port(store, None, None, *local_addr)
            addr, port = SimpleElasticAgent._get_master_addr_port(store)
        else:
            store, rank, world_size = result.store, result.rank, result.world_size
            addr = result.bootstrap_store_info.master_addr
            port = result.bootstrap_store_info.master_port
        state = self.handler._state_holder.state
        self.round_store = store
        return {"rank": rank, "world_size": world_size, "round": state.round, "addr": addr,
                "port": port, "node": self.me(), "document": describe(state)}

    def is_closed(self, request):
        return {"closed": self.handler.is_closed()}

    def set_closed(self, request):
        self.handler.set_closed()

    def waiting(self, request):
        return {"count": self.handler.num_nodes_waiting()}

    def shutdown(self, request):
        return {"closed": self.handler.shutdown()}

    def leave(self, request):
        """Its own first step of next_rendezvous, alone: there is no public call for it."""
        self.handler._stop_heartbeats()
        self.handler._op_executor.run(dynamic_rendezvous._RendezvousExitOp(),
                                      self.handler._get_deadline(datetime.timedelta(seconds=30)))

    def state(self, request):
        """What this handler holds, without asking the store."""
        return {"document": describe(self.handler._state_holder.state)}

    def set(self, request):
        self.round_store.set(request["key"], request["value"])

    def get(self, request):
        return {"value": self.round_store.get(request["key"]).decode()}

    def forget(self, request):
        """Lets go of everything, so that the process can be another node."""
        if self.handler is not None:
            self.handler._stop_heartbeats()
        self.handler = self.store = self.round_store = None
        gc.collect()


# ---- Looking on ----

class Observer:
    def __init__(self):
        self.stores = {}

    def store(self, port):
        if port not in self.stores:
            self.stores[port] = dist.TCPStore(
                "127.0.0.1", port, is_master=False, wait_for_workers=False,
                timeout=datetime.timedelta(seconds=30))
        return self.stores[port]

    def document(self, request):
        """The document in the store as PyTorch reads it, or None if there is none yet."""
        if request.get("backend") == "etcd-v2":
            return self.etcd_document(request)
        try:
            text = self.store(request["port"]).get("torch.rendezvous." + request["run_id"])
        except Exception:
            self.stores.pop(request["port"], None)
            raise
        if text == b"Y2FuaW1hZGFt":
            return {"document": None}
        return {"document": describe(pickle.loads(base64.b64decode(text)))}

    @staticmethod
    def etcd_document(request):
        import etcd
        client = etcd.Client(host="127.0.0.1", port=request["port"])
        try:
            text = client.read("/torch/elastic/rendezvous/" + request["run_id"]).value
        except etcd.EtcdKeyNotFound:
            return {"document": None}
        return {"document": describe(pickle.loads(base64.b64decode(text)))}

    def put(self, request):
        """Writes a document, described or as it is; or text to another key."""
        if "text" in request:
            text = request["text"]
        else:
            state = build(request["document"])
            text = base64.b64encode(pickle.dumps(state)).decode()
        self.store(request["port"]).set(request.get("key", "torch.rendezvous." + request["run_id"]), text)

    def decode(self, request):
        """Documents by their base64: what each says, and whether PyTorch's own copy of it is equal."""
        told = []
        for text in request["texts"]:
            state = pickle.loads(base64.b64decode(text))
            again = pickle.loads(pickle.dumps(state))
            assert describe(again) == describe(state)
            for field, value in vars(again).items():  # by PyTorch's own notion of equal
                assert getattr(state, field) == value, field
            told.append(describe(state))
        return {"documents": told}

    def unobserve(self, request):
        self.stores.clear()
        gc.collect()


def main():
    node, observer = Node(), Observer()
    looks = {name: getattr(observer, name) for name in ("document", "put", "decode", "unobserve")}
    deeds = {name: getattr(node, name) for name in (
        "create", "next", "is_closed", "set_closed", "waiting", "shutdown", "leave", "state",
        "set", "get", "forget")}
    looking, doing = Lane(looks), Lane(deeds)
    tell({"version": torch.__version__, "pid": os.getpid()})
    for line in sys.stdin:
        request = json.loads(line)
        (looking if request["do"] in looks else doing).put(request)
    os._exit(0)  # a handler inside a call must not keep the process


if __name__ == "__main__":
    main()
