"""Ways in which files come to harm, a little different each time."""

from __future__ import annotations

import json
import random
import zlib
from typing import Any


def damaged(content: bytes, rng: random.Random) -> bytes:
    """As disks, networks and editors do it; half of the time where a file tells what it is."""
    near = rng.choice([len(content), min(len(content), 1000)])
    first, last = sorted(rng.choices(range(near + 1), k=2))
    some = min(last, first + rng.choice([1, 4, 64, 1024]))
    match rng.randrange(8):
        case 0:
            return content[:first]
        case 1 | 2:
            flipped = bytearray(content)
            # Most of a small HDF5 file is zeros that nobody reads.
            used = [place for place in range(near) if content[place]]
            for place in rng.choices(used, k=rng.choice([1, 1, 3, 30])):
                flipped[place] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 3:
            return content[:first] + bytes(some - first) + content[some:]
        case 4:
            return content[:first] + rng.randbytes(some - first) + content[some:]
        case 5:
            return content[some:last] + content[first:some] + content[:first] + content[last:]
        case 6:
            return content[:first] + content[some:]
        case _:
            return content + rng.choice([b"\0", b"\n{}", rng.randbytes(50), content])


def resealed(content: bytes, rng: random.Random) -> bytes:
    """A PNG of other chunks, whose checksums hold."""
    chunks, place = [], 8
    while place < len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    which = rng.randrange(len(chunks))
    kind, data = chunks[which]
    match rng.randrange(4):
        case 0:
            del chunks[which]
        case 1:
            chunks[which] = (kind, damaged(data, rng) if data else b"x")
        case 2:
            kind = rng.choice(b"PLTE tRNS acTL fcTL iCCP zTXt gAMA IDAT zzzz".split())
            chunks.insert(which, (kind, rng.randbytes(rng.choice([0, 3, 26, 300]))))
        case _:  # width, height, depth, kind of pixels, three more
            sides = [rng.choice([0, 1, 9, 20_000, 2**31]).to_bytes(4, "big") for _ in range(2)]
            form = [rng.choice([1, 4, 8, 16]), rng.randrange(8), 0, 0, rng.randrange(2)]
            chunks[0] = (b"IHDR", b"".join(sides) + bytes(form))
    sealed = (
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        for kind, data in chunks
    )
    return content[:8] + b"".join(sealed)


STRANGE: list[Any] = [
    None, True, -1, 0, 1.5, 7, 2**31, 10**30, 1e308, float("nan"), float("inf"), "", " ", "a\nb",
    "\x1b[2J", "é" * 9000, "\ud800", "no", "scene", "CLEVR_train_000002.png", "../x.png", [], {},
    [[]], [0], [1, 2], {"a": 1}, [None], " ".join(map(str, range(300))),
    " ".join(map(str, range(40_000))), json.loads("[" * 400 + "]" * 400),
]  # fmt: skip


def mutated(content: bytes, rng: random.Random) -> bytes:
    """As programs do it that write JSON of another kind: it stays JSON, mostly."""
    root = [json.loads(content)]
    holder: Any = root
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = rng.choice(list(keys))
        below = holder[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.1:
            break
        holder = below
    match rng.randrange(5):
        case 0 if len(holder) > 1 or holder is not root:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, below)
        case 2 if isinstance(holder, dict):
            holder[rng.choice(["", "x\ny", "answer", *keys])] = holder.pop(key)
        case _:
            holder[key] = rng.choice(STRANGE)
    text = json.dumps(root[0] if root else None)
    if rng.random() < 0.05:
        text = text.replace("[", "[" * 100_000, 1)
    return text.encode()
