"""What a disk may hold after a power cut. disk_shim.c notes what programs do to the files of a folder; the record is played
up to any point, and what was not written through by then may be there, missing or torn at a sector:

- a file's sync makes its bytes last, a folder's sync its names (and the folder itself). Neither does the other.
- bytes that were not: any sectors of them; the file's length may be there before its bytes, which then read as zeros.
- names that were not: the changes of one folder last in their order, up to any of them; folders independently."""
import copy
import hashlib
import os
import random
import struct

SECTOR = 512
HEADER = struct.Struct("<BBHIqQ")


def watching(shim, prefix, record):
    """The environment of a program whose doings are noted."""
    return {"LD_PRELOAD": shim, "DISK_PREFIX": str(prefix), "DISK_RECORD": str(record)}


def read_record(path):
    """[(kind, path, data, offset, inode)]"""
    data, at, out = open(path, "rb").read(), 0, []
    while at < len(data):
        kind, _, path_bytes, data_bytes, offset, inode = HEADER.unpack_from(data, at)
        at += HEADER.size
        name = data[at:at + path_bytes].decode()
        at += path_bytes
        out.append((chr(kind), name, data[at:at + data_bytes], offset, inode))
        at += data_bytes
    return out


def mark(record):
    """Notes that all so far was promised."""
    with open(record, "ab") as f:
        f.write(HEADER.pack(ord("!"), 0, 0, 0, 0, 0))


class File:
    def __init__(self, inode, content=b""):
        self.inode, self.safe, self.now, self.pending = inode, bytearray(content), bytearray(content), []

    def do(self, op):
        self.pending.append(op)
        change(self.now, op)

    def sync(self):
        for op in self.pending:
            change(self.safe, op)
        self.pending = []

    def after_a_cut(self, draw):
        if not self.pending:
            return bytes(self.safe)
        content, share = bytearray(self.safe), draw.choice((0, 0.5, 0.5, 1))
        for kind, _, data, offset, _ in self.pending:
            if kind == "t":
                if draw.random() < share:
                    change(content, (kind, "", b"", offset, 0))
                continue
            for at in range(0, len(data), SECTOR):
                if draw.random() < share:
                    change(content, ("w", "", data[at:at + SECTOR], offset + at, 0))
        if draw.random() < 0.5:
            content.extend(bytes(max(0, len(self.now) - len(content))))
        return bytes(content)


def change(content, op):
    kind, _, data, offset, _ = op
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if kind == "t":
        del content[offset:]
    else:
        content[offset:offset + len(data)] = data


class Disk:
    """`folder`: what is there before the record begins. A tree is {path: bytes, ("link", target) or None for a folder}."""

    def __init__(self, folder=None):
        self.inodes, self.now, self.safe, self.pending = {}, {}, {}, {}
        for base, folders, files in os.walk(folder) if folder else ():
            for path in (os.path.join(base, name) for name in folders + files):
                inode = os.lstat(path).st_ino
                if os.path.islink(path):
                    self.now[path] = ("link", os.readlink(path))
                elif os.path.isdir(path):
                    self.now[path] = None
                else:
                    self.now[path] = self.inodes[inode] = File(inode, open(path, "rb").read())
        self.safe = dict(self.now)

    def do(self, op):
        kind, path, data, offset, inode = op
        if kind in "wts":
            if file := self.inodes.get(inode):
                file.sync() if kind == "s" else file.do(op)
        elif kind == "d":
            for changes in self.pending.pop(path.rstrip("/"), []):
                self.safe.update(changes)
        elif kind == "o":
            file = self.now.get(path)
            if not isinstance(file, File) or file.inode != inode:
                self.inodes[inode] = File(inode)
                self._name({path: self.inodes[inode]})
        elif kind == "a":
            self.inodes[inode] = File(inode)
        elif kind == "l":
            self._name({path: self.inodes[inode]})
        elif kind == "y":
            self._name({path: ("link", data.decode())})
        elif kind == "m":
            self.now[path] = self.safe[path] = None
        elif kind == "u":
            self._name({path: "gone"})
        elif kind == "r":
            self._name({path: "gone", data.decode(): self.now[path]})

    def _name(self, changes):
        self.now.update(changes)
        self.pending.setdefault(os.path.dirname(next(iter(changes))), []).append(changes)

    def is_of(self, op, end):
        """Whether the op is of a file whose name ends so."""
        return any(isinstance(f, File) and f.inode == op[4] and path.endswith(end) for path, f in self.now.items())

    def has_open_ends(self):
        return any(self.pending.values()) or any(isinstance(f, File) and f.pending for f in self.now.values())

    def tree(self):
        return self._tree(self.now, lambda f: bytes(f.now))

    def after_a_cut(self, draw):
        names = dict(self.safe)
        for changes in self.pending.values():
            for step in changes[:draw.choice((0, len(changes), draw.randint(0, len(changes))))]:
                names.update(step)
        return self._tree(names, lambda f: f.after_a_cut(draw))

    @staticmethod
    def _tree(names, content):
        return {path: content(entry) if isinstance(entry, File) else entry for path, entry in names.items() if entry != "gone"}


def tree_of(folder):
    """The tree that really is there."""
    return Disk(folder).tree()


def write_tree(tree, folder, to):
    for path, content in sorted(tree.items()):
        path = os.path.join(to, os.path.relpath(path, folder))
        os.makedirs(path if content is None else os.path.dirname(path), exist_ok=True)
        if isinstance(content, tuple):
            os.symlink(content[1], path)
        elif content is not None:
            with open(path, "wb") as f:
                f.write(content)


def digest(tree):
    h = hashlib.sha1()
    for path, content in sorted(tree.items()):
        h.update(repr((path, content if not isinstance(content, bytes) else hashlib.sha1(content).digest())).encode())
    return h.digest()


def promises(record, disk):
    """The trees at the beginning and at each mark."""
    disk = copy.deepcopy(disk)
    trees = [disk.tree()]
    for op in record:
        disk.do(op)
        if op[0] == "!":
            trees.append(disk.tree())
    return trees


def cuts(record, disk, n, seed=1):
    """At n points: (number of the op, the tree after a cut there, the trees promised before and next)."""
    draw, trees, disk, at, number = random.Random(seed), promises(record, disk), copy.deepcopy(disk), 0, 0
    for point in sorted(draw.choices(range(len(record) + 1), k=n)):
        for op in record[at:point]:
            disk.do(op)
            number += op[0] == "!"
        at = point
        yield point, disk.after_a_cut(draw), trees[number], trees[min(number + 1, len(trees) - 1)]
