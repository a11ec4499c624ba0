#!/usr/bin/env python3
"""A file system in memory that stops answering when it is told to: the kernel's FUSE protocol, without a library.

    hung_fs.py DIRECTORY [--hold-flush]

Needs root and /dev/fuse; ends with 77 where they cannot be had. Says "mounted", then reads commands from standard input
and says each of them back when it holds:

    hang     no request is answered from now on
    answer   all are, also those that were held

A process that waits for an answer can be killed, as with a hard NFS mount: an interrupted request is given back. Requests
that close a descriptor (FLUSH) are always answered unless --hold-flush is given. The end of standard input unmounts.
"""
import ctypes
import errno
import os
import select
import stat
import struct
import sys
import time

IN_HEADER = struct.Struct("<IIQQIIII")    # len, opcode, unique, nodeid, uid, gid, pid, padding
OUT_HEADER = struct.Struct("<IiQ")        # len, error, unique
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")  # ino, size, blocks, times, their nanoseconds, mode, nlink, uid, gid, rdev, ...
ROOT = 1

(LOOKUP, FORGET, GETATTR, SETATTR, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH,
 INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, CREATE, INTERRUPT, DESTROY, BATCH_FORGET, RENAME2) = (
    1, 2, 3, 4, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 25, 26, 27, 28, 29, 34, 35, 36, 38, 42, 45)


class Node:
    def __init__(self, number, mode):
        self.number = number
        self.mode = mode
        self.data = bytearray()
        self.children = {}

    def is_directory(self):
        return stat.S_ISDIR(self.mode)


class FileSystem:
    def __init__(self):
        self.nodes = {ROOT: Node(ROOT, stat.S_IFDIR | 0o777)}

    def make(self, parent, name, mode):
        if name in self.nodes[parent].children:
            raise OSError(errno.EEXIST, "")
        node = Node(max(self.nodes) + 1, mode)
        self.nodes[node.number] = node
        self.nodes[parent].children[name] = node.number
        return node

    @staticmethod
    def attributes(node):
        now = int(time.time())
        return ATTR.pack(node.number, len(node.data), len(node.data) // 512 + 1, now, now, now, 0, 0, 0, node.mode,
                         2 if node.is_directory() else 1, os.getuid(), os.getgid(), 0, 4096, 0)

    def entry(self, node):
        return struct.pack("<QQQQII", node.number, 0, 0, 0, 0, 0) + self.attributes(node)

    def attr_out(self, node):
        return struct.pack("<QII", 0, 0, 0) + self.attributes(node)

    def remove(self, parent, name):
        if self.nodes[parent].children.pop(name, None) is None:
            raise OSError(errno.ENOENT, "")

    def rename(self, parent, body, header_len):
        target = struct.unpack_from("<Q", body)[0]
        old, new = body[header_len:].split(b"\0")[:2]
        if old not in self.nodes[parent].children:
            raise OSError(errno.ENOENT, "")
        self.nodes[target].children[new] = self.nodes[parent].children.pop(old)

    def directory(self, node, offset):
        names = [b".", b".."] + sorted(node.children)
        out = b""
        for i, name in enumerate(names[offset:], offset + 1):
            number = node.children.get(name, ROOT)
            entry = struct.pack("<QQII", number, i, len(name), self.nodes[number].mode >> 12) + name
            out += entry + b"\0" * (-len(entry) % 8)
        return out[:4096] if len(out) <= 4096 else out[:0]

    def answer(self, opcode, nodeid, body):
        """The bytes of the answer; None: there is none. Raises OSError."""
        node = self.nodes[nodeid] if nodeid in self.nodes else None
        if opcode == INIT:
            major, minor, readahead = struct.unpack_from("<III", body)
            return struct.pack("<IIIIHHIIHHI24x", 7, min(minor, 31), readahead, 0, 16, 12, 131072, 1, 0, 0, 0)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return None
        if opcode == LOOKUP:
            number = node.children.get(body.rstrip(b"\0"))
            if number is None:
                raise OSError(errno.ENOENT, "")
            return self.entry(self.nodes[number])
        if opcode == GETATTR:
            return self.attr_out(node)
        if opcode == SETATTR:
            valid, _, _, size = struct.unpack_from("<IIQQ", body)
            if valid & 8:
                node.data = node.data[:size].ljust(size, b"\0")
            return self.attr_out(node)
        if opcode == MKDIR:
            mode = struct.unpack_from("<I", body)[0]
            return self.entry(self.make(nodeid, body[8:].rstrip(b"\0"), stat.S_IFDIR | mode))
        if opcode == MKNOD:
            mode = struct.unpack_from("<I", body)[0]
            return self.entry(self.make(nodeid, body[16:].rstrip(b"\0"), mode))
        if opcode == CREATE:
            mode = struct.unpack_from("<II", body)[1]
            made = self.make(nodeid, body[16:].rstrip(b"\0"), mode)
            return self.entry(made) + struct.pack("<QII", 0, 0, 0)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if opcode == READ:
            offset, size = struct.unpack_from("<QI", body, 8)
            return bytes(node.data[offset:offset + size])
        if opcode == READDIR:
            return self.directory(node, struct.unpack_from("<Q", body, 8)[0])
        if opcode == WRITE:
            offset, size = struct.unpack_from("<QI", body, 8)
            node.data[offset:offset + size] = body[40:40 + size]
            return struct.pack("<II", size, 0)
        if opcode == STATFS:
            return struct.pack("<QQQQQIIII24x", 1000, 500, 500, 1000, 500, 4096, 255, 4096, 0)
        if opcode in (UNLINK, RMDIR):
            self.remove(nodeid, body.rstrip(b"\0"))
            return b""
        if opcode in (RENAME, RENAME2):
            self.rename(nodeid, body, 8 if opcode == RENAME else 16)
            return b""
        if opcode in (RELEASE, RELEASEDIR, FSYNC, FLUSH, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "")


class Server:
    def __init__(self, fd, hold_flush):
        self.fd = fd
        self.files = FileSystem()
        self.hold_flush = hold_flush
        self.hanging = False
        self.held = {}  # by unique: what is to be answered one day

    def reply(self, unique, error, data=b""):
        try:
            os.write(self.fd, OUT_HEADER.pack(OUT_HEADER.size + len(data), error, unique) + data)
        except FileNotFoundError:
            pass  # nobody waits any more

    def carry_out(self, opcode, unique, nodeid, body):
        try:
            data = self.files.answer(opcode, nodeid, body)
        except OSError as error:
            self.reply(unique, -error.errno)
            return
        if data is not None:
            self.reply(unique, 0, data)

    def on_request(self):
        request = os.read(self.fd, 1 << 20)
        _, opcode, unique, nodeid, _, _, _, _ = IN_HEADER.unpack_from(request)
        body = request[IN_HEADER.size:]
        if opcode == INTERRUPT:
            interrupted = struct.unpack_from("<Q", body)[0]
            if self.held.pop(interrupted, None) is not None:
                self.reply(interrupted, -errno.EINTR)
        elif self.hanging and opcode not in (FORGET, BATCH_FORGET) and (opcode != FLUSH or self.hold_flush):
            self.held[unique] = (opcode, unique, nodeid, body)
        else:
            self.carry_out(opcode, unique, nodeid, body)

    def on_command(self, command):
        self.hanging = command == "hang"
        if not self.hanging:
            held, self.held = self.held, {}
            for request in held.values():
                self.carry_out(*request)
        print(command, flush=True)


def main():
    directory = os.path.abspath(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        print(f"/dev/fuse: {error.strerror}", file=sys.stderr)
        return 77
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    if libc.mount(b"hung_fs", directory.encode(), b"fuse.hung_fs", 6, options.encode()) != 0:  # nosuid, nodev
        print(f"mount: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 77
    try:
        server = Server(fd, "--hold-flush" in sys.argv[2:])
        print("mounted", flush=True)
        while True:
            ready = select.select([fd, sys.stdin], [], [])[0]
            if fd in ready:
                server.on_request()
            if sys.stdin in ready:
                line = sys.stdin.readline()
                if not line:
                    return 0
                server.on_command(line.strip())
    finally:
        libc.umount2(directory.encode(), 2)  # lazily: whoever still uses it gets an error
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
