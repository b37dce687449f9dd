"""Ten thousand malformed or hostile requests against a router that runs with tokens.

    fedspm serve all RUN --port 8000 --rate 1e9 --tokens tokens.toml
    python benchmarks/hostile.py --port 8000 --pid PID --token TOKEN RUN/samples/client-0.png

Every one must be refused with a sentence; none may be answered with 5xx, and memory must stay flat.
"""

import argparse
import asyncio
import collections
import io
import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import aiohttp
from PIL import Image

Request = dict[str, object]
TENSORS = "application/x-safetensors"


def png(width: int, height: int, content: bytes = b"") -> bytes:
    """A PNG whose header says what it likes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


def bomb() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (9000, 9000)).save(buffer, "PNG")  # 81 million pixels in 80 kB
    return buffer.getvalue()


class Hostile:
    def __init__(self, image: bytes, token: str, seed: int):
        self._image = image
        self._token = {"authorization": f"Bearer {token}"}
        self._random = random.Random(seed)
        self._bomb = bomb()
        buffer = io.BytesIO()
        Image.open(io.BytesIO(image)).convert("RGB").save(buffer, "JPEG")
        self._jpeg = buffer.getvalue()
        self.kinds: list[Callable[[], Request]] = [
            self.noise, self.truncated, self.header, self.bombs, self.json, self.nested, self.tensors, self.form,
            self.parameters, self.method, self.path, self.stranger,
        ]  # fmt: skip

    def post(self, body: bytes, kind: str, **more: object) -> Request:
        headers = {**self._token, "content-type": kind}
        return {"method": "POST", "path": "/v1/predict", "data": body, "headers": headers} | more

    def noise(self) -> Request:
        kinds = [
            "image/png",
            "application/json",
            TENSORS,
            "multipart/form-data; boundary=x",
            "text/html",
            "",
            "a/b/c;;=",
        ]
        return self.post(self._random.randbytes(self._random.randrange(400)), self._random.choice(kinds))

    def truncated(self) -> Request:
        image = self._random.choice([self._image, self._jpeg])
        return self.post(image[: self._random.randrange(len(image) // 2)], "image/png")

    def header(self) -> Request:
        sizes = [0, 1, 4001, 65_535, 2**31 - 1, 2**32 - 1]
        width, height = self._random.choice(sizes), self._random.choice([0, 5000, 65_535, 2**32 - 1])
        return self.post(png(width, height, b"\x00" * self._random.randrange(100)), "image/png")

    def bombs(self) -> Request:
        return self.post(self._bomb, "image/png")

    def json(self) -> Request:
        wrong = [None, True, "x", {}, {"x": None}, {"x": "1"}, {"x": [[]]}, {"x": [[1, 2], [3]]}, {"x": {"a": 1}}, [],
                 {"x": [1e308] * 3}, {"y": [1]}, {"x": [["a"] * 3]}, {"x": 10**400}]  # fmt: skip
        return self.post(json.dumps(self._random.choice(wrong)).encode(), "application/json")

    def nested(self) -> Request:
        depth = self._random.randrange(1000, 300_000)
        return self.post(b'{"x":' + b"[" * depth + b"]" * self._random.choice([0, depth]) + b"}", "application/json")

    def tensors(self) -> Request:
        entry = {"dtype": self._random.choice(["F32", "U8", "Q7", "BOOL", "I64"]), "shape": [2, 3, 28, 27],
                 "data_offsets": [0, self._random.choice([0, 10, 2**40])]}  # fmt: skip
        head = json.dumps({self._random.choice(["x", "y"]): entry}).encode()
        length = self._random.choice([len(head), 0, 2**63, 5])
        return self.post(struct.pack("<Q", length) + head + b"\x00" * self._random.randrange(64), TENSORS)

    def form(self) -> Request:
        name = self._random.choice(["image", "images", "file", "", 'x"y'])
        part = f'--b\r\ncontent-disposition: form-data; name="{name}"; filename="f"\r\n\r\n'.encode()
        bodies = [part + b"junk\r\n--b--\r\n", part, b"--b\r\n\r\n--b--", b"--b--", part * 600 + b"--b--", b"\r\n" * 50]
        kind = self._random.choice(
            ["multipart/form-data; boundary=b", "multipart/form-data", "multipart/form-data; boundary="]
        )
        return self.post(self._random.choice(bodies), kind)

    def parameters(self) -> Request:
        query = self._random.choice(["mode=worst", "top=0", "top=-1", "top=1e9", "top=x", "view=perhaps", "mode="])
        return self.post(self._image, "image/png", path=f"/v1/predict?{query}")

    def method(self) -> Request:
        name = self._random.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
        return {"method": name, "path": "/v1/predict", "headers": self._token}

    def path(self) -> Request:
        paths = ["/v1/samples/..%2f..%2fmanifest.json", "/v1/samples/%2e%2e", "/../../etc/passwd", "/v1/",
                 "/v2/predict", "/page/../router.py", "/" + "a" * 3000, "/%00", "/v1/samples/\u2603"]  # fmt: skip
        return {"method": "GET", "path": self._random.choice(paths), "headers": self._token}

    def stranger(self) -> Request:
        shown = self._random.choice([{}, {"authorization": "Bearer "}, {"authorization": "Bearer " + "x" * 4000},
                                     {"authorization": "Basic eA=="}])  # fmt: skip
        path = self._random.choice(["/v1/predict", "/v1/route"])
        return self.post(self._image, "image/png", path=path) | {"headers": {"content-type": "image/png", **shown}}

    def oversized(self) -> Request:
        return self.post(b"\x00" * (17 * 2**20), "image/png")


def said(text: bytes) -> str:
    """The sentence; what is not even HTTP is refused by the server itself, in plain text."""
    try:
        return str(json.loads(text)["error"])
    except ValueError:
        return text.decode()


def memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


async def attack(arguments: argparse.Namespace) -> None:
    hostile = Hostile(arguments.image.read_bytes(), arguments.token, arguments.seed)
    base = f"http://127.0.0.1:{arguments.port}"
    seen: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    silent: list[str] = []
    left = arguments.requests

    async def one(session: aiohttp.ClientSession, make: Callable[[], Request]) -> None:
        request = make()
        path = str(request.pop("path"))
        try:
            async with session.request(url=base + path, **request) as reply:  # type: ignore[arg-type]
                text = await reply.read()
                seen[make.__name__][reply.status] += 1
                if reply.status >= 400 and len(said(text)) < 10:
                    silent.append(f"{make.__name__} {reply.status} {text[:100]!r}")
        except (aiohttp.ClientError, ValueError, KeyError) as error:
            seen[make.__name__][0] += 1
            silent.append(f"{make.__name__} {error!r}")

    async def worker(session: aiohttp.ClientSession) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            rare = left % 500 == 0
            await one(session, hostile.oversized if rare else hostile.kinds[left % len(hostile.kinds)])

    async with aiohttp.ClientSession() as session:
        early = None
        workers = [asyncio.create_task(worker(session)) for _ in range(16)]
        while left > 0:
            await asyncio.sleep(0.5)
            if early is None and left < 0.8 * arguments.requests:
                early = memory(arguments.pid)
        await asyncio.gather(*workers)
        body = {"data": arguments.image.read_bytes(), "headers": {**hostile._token, "content-type": "image/png"}}
        async with session.post(f"{base}/v1/predict", **body) as reply:
            good = reply.status
    everything = sum(seen.values(), collections.Counter())
    for kind, statuses in seen.items():
        print(f"{kind:12} {dict(sorted(statuses.items()))}")
    print(json.dumps({"requests": sum(everything.values()), "5xx": sum(n for s, n in everything.items() if s >= 500),
                      "answered": everything[200], "without_a_sentence": len(silent), "examples": silent[:3],
                      "megabytes_after_a_fifth": early, "megabytes_at_the_end": memory(arguments.pid),
                      "a_good_request_afterwards": good}))  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(attack(parser.parse_args()))
