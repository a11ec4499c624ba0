"""Two machines in one: network namespaces `a` and `b` with two wires between them, made and removed by the test that wants
them. Needs root and iproute2, and nftables for lost packets.

On the first wire `a` is 10.201.0.1 and fd00:201::1, `b` ends in 2; on the second it is 10.202.0.1 and 10.202.0.2.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import uuid

PYTHON = "/usr/bin/python3"
LIMIT = 60
TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
    print("open")
except ConnectionRefusedError:
    print("refused")
except OSError as error:
    print(error)
"""


def missing():
    """Why there can be none here; empty if they can be made."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "iproute2 is absent"
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"no network namespaces here: {probe.stderr.strip()}" if probe.returncode else ""


def missing_nft():
    """Why no packets can be lost here; empty if they can."""
    if not shutil.which("nft"):
        return "nftables is absent"
    probe = subprocess.run(["unshare", "--net", "nft", "add table inet probe"], capture_output=True, text=True, check=False)
    return f"no rules of nft here: {probe.stderr.strip()}" if probe.returncode else ""


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=LIMIT)


class Namespaces:
    def __init__(self):
        mark = uuid.uuid4().hex[:8]
        self.names = {which: f"muster-{mark}-{which}" for which in "ab"}
        self.interfaces = {which: f"m{mark}{which}1" for which in "ab"}  # of the first wire
        self._etc = []
        try:
            self._make(mark)
        except BaseException:
            self.remove()
            raise

    def _make(self, mark):
        for name in self.names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for wire in (1, 2):
            ends = {which: f"m{mark}{which}{wire}" for which in "ab"}
            ip("link", "add", ends["a"], "netns", self.names["a"], "type", "veth", "peer", "name", ends["b"],
               "netns", self.names["b"])
            for last, which in enumerate("ab", 1):
                name = self.names[which]
                ip("-n", name, "addr", "add", f"10.20{wire}.0.{last}/24", "dev", ends[which])
                if wire == 1:
                    ip("-n", name, "addr", "add", f"fd00:201::{last}/64", "dev", ends[which], "nodad")
                ip("-n", name, "link", "set", ends[which], "up")

    def hosts(self, which, **names):
        """What names are there: `hosts("a", node1="127.0.1.1")`."""
        directory = pathlib.Path("/etc/netns") / self.names[which]
        directory.mkdir(parents=True)
        self._etc.append(directory)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        (directory / "hosts").write_text("\n".join(lines) + "\n")

    def inside(self, which):
        """What to put in front of a command."""
        return ["ip", "netns", "exec", self.names[which]]

    def try_from(self, which, host, port):
        """A connection to there: open, refused, or what else comes of it."""
        done = subprocess.run([*self.inside(which), PYTHON, "-c", TRY, host, str(port)], capture_output=True, text=True,
                              timeout=LIMIT, check=True)
        return done.stdout.strip()

    def lose(self, which, rule):
        """What comes to it by a wire is subject to this rule of nft: `drop` it, or some of it."""
        rules = f"""
            table inet loss
            delete table inet loss
            table inet loss {{
                chain arriving {{
                    type filter hook input priority 0
                    iifname != "lo" {rule}
                }}
            }}
        """
        subprocess.run([*self.inside(which), "nft", "-f", "-"], input=rules, text=True, timeout=LIMIT, check=True)

    def heal(self):
        for which in self.names:
            subprocess.run([*self.inside(which), "nft", "flush", "ruleset"], timeout=LIMIT, check=True)

    def remove(self):
        for directory in self._etc:
            shutil.rmtree(directory, ignore_errors=True)
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, timeout=LIMIT, check=False)


def _sockets(pid):
    found = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def _address(text):
    """As /proc/net/tcp writes them: words of 32 bits in the machine's order."""
    raw = bytes.fromhex(text)
    words = [raw[at:at + 4][::-1 if sys.byteorder == "little" else 1] for at in range(0, len(raw), 4)]
    data = b"".join(words)
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def listening(pid):
    """{port: {address, ...}} of all that a process listens on."""
    own, found = _sockets(pid), {}
    for table in ("tcp", "tcp6"):
        path = pathlib.Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:
                address, _, port = fields[1].rpartition(":")
                found.setdefault(int(port, 16), set()).add(_address(address))
    return found
