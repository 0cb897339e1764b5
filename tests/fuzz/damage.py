"""Damage to bytes: each function takes bytes and random numbers, and returns other bytes.

``RAW`` is what a disk, a network or a hurried hand does to any file. The others know a format and edit it so that it is
still well formed, as an attacker or another program would.
"""

import ast
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable

import numpy as np

Damage = Callable[[bytes, np.random.Generator], bytes]

ODD_INTEGERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
ZIP_HEADERS = {b"PK\x03\x04": 30, b"PK\x01\x02": 46, b"PK\x05\x06": 22}
"""The beginnings of headers in a zip, and how long each header is."""

DEEP = 3000
"""Nesting beyond Python's limit of recursion."""

BOMB_BYTES = 3 * 2**30
"""What a small member claims to unpack to: more than a process may hold."""


def chosen(rng: np.random.Generator, options):
    """One of several things, whatever they are."""
    options = list(options)
    return options[int(rng.integers(len(options)))]


def some_slice(data: bytes, rng: np.random.Generator, largest: int = 64) -> slice:
    """A short stretch of the bytes, empty if there are none."""
    start = int(rng.integers(len(data) + 1))
    return slice(start, min(len(data), start + int(rng.integers(1, largest + 1))))


# Any bytes


def flip_bits(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        if changed:
            changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncate(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(len(data) + 1))]


def remove_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    gone = some_slice(data, rng)
    return data[: gone.start] + data[gone.stop :]


def insert_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data) + 1))
    return data[:at] + rng.bytes(int(rng.integers(1, 64))) + data[at:]


def repeat_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    again = some_slice(data, rng, largest=512)
    return data[: again.stop] + data[again] + data[again.stop :]


def zero_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    gone = some_slice(data, rng, largest=512)
    return data[: gone.start] + bytes(gone.stop - gone.start) + data[gone.stop :]


def write_odd_integer(data: bytes, rng: np.random.Generator) -> bytes:
    size = chosen(rng, (1, 2, 4, 8))
    number = (chosen(rng, ODD_INTEGERS) % 256**size).to_bytes(size, "little")
    at = int(rng.integers(max(1, len(data) - size)))
    return data[:at] + number + data[at + size :]


def empty(data: bytes, rng: np.random.Generator) -> bytes:
    return b""


def random_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    return rng.bytes(int(rng.integers(1, 2000)))


def append_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    return data + rng.bytes(int(rng.integers(1, 200)))


RAW: tuple[Damage, ...] = (
    flip_bits,
    flip_bits,
    truncate,
    remove_bytes,
    insert_bytes,
    repeat_bytes,
    zero_bytes,
    write_odd_integer,
    append_bytes,
    empty,
    random_bytes,
)


# Headers of zip archives


def edit_zip_header(data: bytes, rng: np.random.Generator) -> bytes:
    """Write an odd number into a field of one of the headers: sizes, offsets, flags, method."""
    places = [(at, size) for mark, size in ZIP_HEADERS.items() for at in _find_all(data, mark)]
    if not places:
        return data
    at, size = chosen(rng, places)
    width = chosen(rng, (1, 2, 4))
    field = at + 4 + int(rng.integers(size - 4))
    return data[:field] + (chosen(rng, ODD_INTEGERS) % 256**width).to_bytes(width, "little") + data[field + width :]


def _find_all(data: bytes, mark: bytes) -> list[int]:
    places, at = [], data.find(mark)
    while at >= 0:
        places.append(at)
        at = data.find(mark, at + 1)
    return places


# Whole .npy files and their headers


def npy(array) -> bytes:
    """The bytes of an ``.npy`` file, pickled where numpy would pickle."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_with_header(text: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An ``.npy`` file whose header is this text."""
    packing = "<H" if version == (1, 0) else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(packing, len(text)) + text.encode("latin1") + data


HEADER_VALUES = {
    "descr": (
        *("<f4", ">f8", "<f2", "<i8", "<u1", "<c16", "|b1", "|O", "<U9", "<U999999999", "|V8", "<M8[s]", "f", "", 3),
        *(None, [("a", "<f8")], [("a", "|O")], ["<f8"], ("<f8", (2,))),
    ),
    "shape": (
        (),
        (0,),
        (-1,),
        (3, -2),
        (2**40,),
        (2**62, 2**62),
        (1.5,),
        ("3",),
        None,
        7,
        (1,) * 40,
        (3, 5, 2),
        (2, 2),
    ),
    "fortran_order": (True, False, 1, "yes", None),
}
BROKEN_HEADERS = ("", "{", "[1, 2]", "{'descr': open('x')}", "(" * DEEP, "{'shape': " + "9" * 6000 + "}", "\x00" * 40)


def edit_npy_header(data: bytes, rng: np.random.Generator) -> bytes:
    """Another type, shape or order, or a header that is none."""
    if data[:6] != b"\x93NUMPY" or rng.random() < 0.2:
        return npy_with_header(chosen(rng, BROKEN_HEADERS), data, chosen(rng, ((1, 0), (2, 0), (3, 0), (9, 9))))
    (length,) = struct.unpack("<H", data[8:10])
    header = ast.literal_eval(data[10 : 10 + length].decode("latin1"))
    key = chosen(rng, (*HEADER_VALUES, "extra", "missing"))
    if key == "missing":
        del header[chosen(rng, list(header))]
    elif key == "extra":
        header["extra"] = "x"
    else:
        header[key] = chosen(rng, HEADER_VALUES[key])
    return npy_with_header(repr(header) + "\n", data[10 + length :])


def edit_npy_values(data: bytes, rng: np.random.Generator) -> bytes:
    """Another array of the same shape: NaN, infinite, huge, zero, negative, other types."""
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError):
        return random_bytes(data, rng)
    kind = chosen(rng, ("nan", "inf", "huge", "zero", "negative", "one", "type", "shape", "object", "text"))
    if kind in ("nan", "inf", "huge", "one"):
        value = {"nan": np.nan, "inf": np.inf, "huge": 1e200, "one": rng.normal()}[kind]
        array = array.astype(np.result_type(array.dtype, np.float64))
        array.reshape(-1)[int(rng.integers(max(1, array.size))) :] = value
        return npy(array)
    if kind == "type":
        with np.errstate(all="ignore"):
            return npy(np.real(array).astype(chosen(rng, ("f4", "f2", ">f8", "i8", "u1", "c16", "?"))))
    if kind == "shape":
        array = np.atleast_1d(array)
        return npy(chosen(rng, (array[..., None], array.reshape(-1), array[:0], array.T, np.resize(array, (2, 3)))))
    if kind == "object":
        return npy(np.array([print, {}], dtype=object))
    if kind == "text":
        return npy(np.array(["a", "b"]))
    if kind == "zero":
        return npy(np.zeros_like(array))
    return npy(np.negative(array, dtype=np.result_type(array.dtype, np.int16), casting="unsafe"))


# Members of an .npz or another zip


def rewrite_zip(data: bytes, rng: np.random.Generator) -> bytes:
    """Remove, rename, repeat, add or edit a member, and write the archive again with true checksums."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
        return data
    at = int(rng.integers(len(members)))
    name, content = members[at]
    other = members[int(rng.integers(len(members)))]
    kind = chosen(
        rng, ("remove", "rename", "swap", "repeat", "add", "header", "values", "raw", "raw", "outside", "bomb")
    )
    if kind == "remove":
        members.pop(at)
    elif kind == "rename":
        members[at] = (
            chosen(rng, (name.upper(), "x.npy", name.removesuffix(".npy"), "ä.npy", "")),
            content,
        )
    elif kind == "swap":
        members[at] = (name, other[1])
    elif kind == "repeat":
        members.append((name, other[1]))
    elif kind == "add":
        members.append(
            (chosen(rng, ("extra.npy", "pickle.npy", "folder/", "text.txt")), npy(np.array([{}], dtype=object)))
        )
    elif kind == "outside":
        members.append((chosen(rng, ("../x.npy", "/etc/x.npy", "C:/x.npy")), content))
    elif kind == "bomb":
        return _zip_with_bomb(members, at)
    else:
        edit = {"header": edit_npy_header, "values": edit_npy_values, "raw": chosen(rng, RAW)}[kind]
        members[at] = (name, edit(content, rng))
    return write_zip(members, compression=chosen(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)))


def write_zip(members, *, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of these names and contents."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            if name in archive.NameToInfo:
                del archive.NameToInfo[name]  # a second member of a name, without zipfile's warning
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=compression)
    return file.getvalue()


def _zip_with_bomb(members, at: int) -> bytes:
    """A member of zeros that is small here and has `BOMB_BYTES` when it is unpacked."""
    header = npy_with_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({BOMB_BYTES // 8},)}}\n")
    members = [*members[:at], (members[at][0], b"@"), *members[at + 1 :]]
    data = write_zip(members, compression=zipfile.ZIP_STORED)
    body = zeros_deflated(header)
    name = members[at][0].encode()
    local = data.index(name) - 30
    end_of_member = local + 30 + len(name) + 1
    sizes = struct.pack("<LLL", 0, len(body), BOMB_BYTES + len(header))
    grown = len(body) - 1
    patched = data[: local + 8] + b"\x08\x00" + data[local + 10 : local + 14] + sizes
    patched += data[local + 26 : local + 30] + name + body
    rest = bytearray(data[end_of_member:])
    for place in _find_all(bytes(rest), b"PK\x01\x02"):
        (offset,) = struct.unpack_from("<L", rest, place + 42)
        if offset == local:
            struct.pack_into("<H", rest, place + 10, 8)
            rest[place + 16 : place + 28] = sizes
        elif offset > local:
            struct.pack_into("<L", rest, place + 42, offset + grown)
    end = bytes(rest).rindex(b"PK\x05\x06")
    (directory,) = struct.unpack_from("<L", rest, end + 16)
    struct.pack_into("<L", rest, end + 16, directory + grown)
    return patched + bytes(rest)


def zeros_deflated(head: bytes) -> bytes:
    """A deflate stream of ``head`` and then `BOMB_BYTES` zeros, put together from copies of one megabyte of them."""
    first = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = first.compress(head) + first.flush(zlib.Z_FULL_FLUSH)
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    megabyte = block.compress(bytes(2**20)) + block.flush(zlib.Z_FULL_FLUSH)
    last = zlib.compressobj(9, zlib.DEFLATED, -15)
    return start + megabyte * (BOMB_BYTES // 2**20) + last.flush()


# JSON


def deep_list() -> str:
    """A list in a list in a list."""
    return "[" * DEEP + "]" * DEEP


ODD_VALUES = (
    *(None, True, "", "x", "NaN", -1, 0, 0.5, 2**31, 10**9, 10**30, 1e308, [], {}, [1], {"a": 1}),
    *([[]] * 3, "float16", "int64", "bytes", "../../x", "\x00", "9" * 5000),
)


def edit_json(data: bytes, rng: np.random.Generator) -> bytes:
    """Remove, rename or replace something anywhere in it, or nest it deeply."""
    try:
        tree = json.loads(data)
    except ValueError:
        return data
    places = list(_places(tree))
    if not places or rng.random() < 0.05:
        return chosen(rng, (deep_list().encode(), b"null", b"[]", b"{}", b"3", b'"x"', b"\xff\xfe{}", b'{"a": NaN}'))
    parent, key = chosen(rng, places)
    kind = chosen(rng, ("remove", "rename", "replace", "replace", "replace", "add", "deep"))
    if kind == "remove":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[f"{key}_"] = parent.pop(key)
    elif kind == "add" and isinstance(parent, dict):
        parent["unknown"] = chosen(rng, ODD_VALUES)
    elif kind == "deep":
        parent[key] = "DEEP"
        return json.dumps(tree).encode().replace(b'"DEEP"', deep_list().encode())
    else:
        parent[key] = chosen(rng, ODD_VALUES)
    return json.dumps(tree).encode()


def _places(tree):
    """Every (container, key) in a tree of lists and dictionaries."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


# safetensors


def edit_safetensors(data: bytes, rng: np.random.Generator) -> bytes:
    """Edit the JSON header and write its length again."""
    if len(data) < 8:
        return data
    (length,) = struct.unpack("<Q", data[:8])
    header = edit_json(data[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]
