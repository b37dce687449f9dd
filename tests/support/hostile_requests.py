"""Malformed and hostile requests of many kinds, drawn from a seed: all of them must be refused with a sentence."""

import io
import json
import random
import struct
import zlib
from collections.abc import Callable

from PIL import Image

from hostile_images import COSTLY, encoded

Request = dict[str, object]
TENSORS = "application/x-safetensors"
QUERIES = ("/v1/predict", "/v1/route")


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
        self._bmp, self._tiff = encoded("BMP", 28), encoded("TIFF", 28)
        self.kinds: list[Callable[[], Request]] = [
            self.noise, self.truncated, self.header, self.bombs, self.json, self.nested, self.tensors, self.form,
            self.parameters, self.method, self.path, self.stranger, self.costly, self.mutated, self.pages, self.names,
        ]  # fmt: skip
        self._costly = [make(20_000) for make in COSTLY.values()]

    def post(self, body: bytes, kind: str, **more: object) -> Request:
        headers = {**self._token, "content-type": kind}
        path = self._random.choice(QUERIES)
        return {"method": "POST", "path": path, "data": body, "headers": headers} | more

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

    def costly(self) -> Request:
        """Images that a decoder would work on for long; here they are short, and cut somewhere."""
        image = self._random.choice(self._costly)
        return self.post(image[: self._random.randrange(20, len(image))], "image/png")

    def mutated(self) -> Request:
        """Bodies that were right, with a few bytes changed: some still are."""
        tensors = json.dumps({"x": {"dtype": "U8", "shape": [3, 28, 28], "data_offsets": [0, 2352]}}).encode()
        right = [
            (self._image, "image/png"), (self._jpeg, "image/jpeg"),
            (self._bmp, "image/bmp"), (self._tiff, "image/tiff"),
            (struct.pack("<Q", len(tensors)) + tensors + bytes(2352), TENSORS),
            (json.dumps({"x": [[[0.5] * 28] * 28] * 3}).encode(), "application/json"),
        ]  # fmt: skip
        body, kind = self._random.choice(right)
        changed = bytearray(body)
        for _ in range(self._random.randrange(1, 9)):
            changed[self._random.randrange(len(changed))] = self._random.randrange(256)
        return self.post(bytes(changed), kind)

    def pages(self) -> Request:
        """Every other address, with methods, bodies and parameters that it does not expect."""
        paths = ["/v1/clients", "/v1/model", "/healthz", "/readyz", "/metrics", "/openapi.json", "/", "/page.js",
                 "/v1/samples", "/v1/samples/none", "/docs"]  # fmt: skip
        body = self._random.randbytes(self._random.randrange(200)) if self._random.random() < 0.5 else None
        query = self._random.choice(["", "?x=1", "?%ff", "?" + "a=b&" * 200])
        method = self._random.choice(["GET", "HEAD", "POST", "PUT", "DELETE"])
        return {"method": method, "path": self._random.choice(paths) + query, "data": body, "headers": self._token}

    def names(self) -> Request:
        """Hosts and origins that are not the service's, and headers that are odd."""
        odd = [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}, {"host": "[::"},
               {"origin": "http://" + "a" * 5000}, {"content-type": "image/png; " + "a=b;" * 2000},
               {"content-type": "application/json; charset=utf-7"}, {"content-encoding": "gzip"},
               {"x-forwarded-for": "127.0.0.1", "host": "a b"}, {"authorization": "Bearer \u00ff\u00fe"}]  # fmt: skip
        request = self.post(self._image[:50], "image/png")
        return request | {"headers": {**request["headers"], **self._random.choice(odd)}}

    def oversized(self) -> Request:
        return self.post(b"\x00" * (17 * 2**20), "image/png")


def said(text: bytes) -> str:
    """The sentence; what is not even HTTP is refused by the server itself, in plain text."""
    try:
        return str(json.loads(text)["error"])
    except ValueError:
        return text.decode()
