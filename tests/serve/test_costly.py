"""Bodies that would cost much are refused before they do."""

import io
import json
import struct
import warnings

import pytest
import torch
from PIL import Image, PpmImagePlugin
from safetensors.torch import save

import hostile_images
from fedspm.data.images import read_image
from fedspm.serve import bundle as bundles
from fedspm.serve.http.image_header import SERVED
from hostile_images import COSTLY
from serving import ask

TENSORS = {"content-type": "application/x-safetensors"}


def empty_tensors(count):
    """A safetensors file of so many tensors without a value."""
    entries = (f'"{k}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for k in range(count))
    header = ("{" + ",".join(entries) + "}").encode()
    return len(header).to_bytes(8, "little") + header


def test_a_header_that_declares_very_many_tensors_is_refused_unread(served, monkeypatch):
    body, built = empty_tensors(280_000), []
    real = bundles.load
    monkeypatch.setattr(bundles, "load", lambda content: built.append(len(content)) or real(content))

    async def act(http, router, board):
        refused = await http.post("/v1/predict", content=body, headers=TENSORS)
        many = await http.post("/v1/predict", content=empty_tensors(100), headers=TENSORS)
        return refused, many

    refused, many = ask(served[2], act)
    assert len(body) < 16 * 2**20
    assert refused.status_code == 400
    assert "the header of the tensors has" in refused.json()["error"]
    assert (many.status_code, many.json()["error"]) == (422, "the body must have one tensor, named x")
    assert len(body) not in built


def test_a_node_reads_no_such_header_either(served):
    async def act(http, router, board):
        headers = TENSORS | {"x-fedspm-version": router.current.model.card.version}
        return await board.send("POST", "http://north/v1/answer", 30.0, empty_tensors(2000), headers)

    status, reply = ask(served[2], act)
    assert status == 422
    assert "the header of the tensors has" in json.loads(reply)["error"]


def plain(kind, side=8):
    """An image as text: bits, greys or colours."""
    values = side * side * (3 if kind == "P3" else 1)
    most = b"" if kind == "P1" else b"9\n"
    return f"{kind}\n{side} {side}\n".encode() + most + b"1 " * values


def encoded(kind, **options):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (7, 8, 9)).save(buffer, kind, **options)
    return buffer.getvalue()


def test_plain_text_images_are_refused_before_they_are_decoded(pictured, monkeypatch):
    """Pillow reads them number by number in Python: a body of 16 MB takes many seconds."""
    decoded = []
    for decoder in (PpmImagePlugin.PpmPlainDecoder, PpmImagePlugin.PpmDecoder):
        monkeypatch.setattr(decoder, "decode", lambda self, buffer: decoded.append(1))
    others = [encoded("PPM"), encoded("GIF"), encoded("TGA"), encoded("ICO"), encoded("PCX"), encoded("SGI")]

    async def act(http, router, board):
        bodies = [plain("P1"), plain("P2"), plain("P3"), *others]
        kinds = [await http.post("/v1/predict", content=body, headers={"content-type": "image/png"}) for body in bodies]
        return [*kinds, await http.post("/v1/predict", files=[("images", encoded("PNG")), ("images", plain("P3"))])]

    for reply in ask(pictured[1], act):
        assert reply.status_code == 422
        assert "it is none of PNG, JPEG, WEBP, TIFF, BMP" in reply.json()["error"]
    assert not decoded


@pytest.mark.parametrize("kind", SERVED)
def test_formats_that_are_documented_are_answered(pictured, kind):
    async def act(http, router, board):
        return await http.post("/v1/predict", content=encoded(kind), headers={"content-type": "image/any"})

    assert ask(pictured[1], act).status_code == 200


def test_a_folder_of_ones_own_may_hold_more(tmp_path):
    (tmp_path / "a.ppm").write_bytes(encoded("PPM"))
    assert torch.allclose(read_image(tmp_path / "a.ppm", (3, 8, 8))[0], torch.tensor(7 / 255))


def test_one_tensor_is_read_as_before(served):
    async def act(http, router, board):
        return await http.post("/v1/predict", content=save({"x": torch.zeros(2, 6)}), headers=TENSORS)

    assert ask(served[2], act).status_code == 200


@pytest.mark.parametrize("kind", COSTLY)
def test_images_that_ask_for_much_work_are_refused_before_any_is_done(pictured, monkeypatch, kind):
    """One of these of 15 MB took between three seconds and hours."""
    image, opened = COSTLY[kind](200_000), []
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda *given, **options: opened.append(1) or real(*given, **options))

    async def act(http, router, board):
        alone = await http.post("/v1/predict", content=image, headers={"content-type": "image/png"})
        return alone, await http.post("/v1/predict", files=[("images", image)])

    for reply in ask(pictured[1], act):
        assert reply.status_code == 422
        assert "save it" in reply.json()["error"]
    assert not opened


@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {"progressive": True}), ("TIFF", {"compression": "tiff_deflate"}), ("WEBP", {"lossless": True})],
)
def test_larger_images_are_read_by_the_thread_for_them(pictured, kind, options):
    image = hostile_images.encoded(kind, 1200, **options)

    async def act(http, router, board):
        alone = await http.post("/v1/predict", content=image, headers={"content-type": "image/any"})
        return alone, await http.post("/v1/predict", files=[("images", image)] * 2)

    assert [reply.status_code for reply in ask(pictured[1], act)] == [200, 200]


def test_what_pillow_warns_of_is_neither_printed_nor_remembered(pictured, recwarn):
    """Every tag of a TIFF made it warn, with numbers from the file: lines in the log without end."""
    tags = [(256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8)]
    tags += [(277, 3, 1, 1), (278, 4, 1, 8), (279, 4, 1, 64), *((40_000 + k, 5, 60, 8) for k in range(200))]
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    image = b"II*\0" + struct.pack("<I", 72) + bytes(64) + directory
    warnings.filterwarnings("ignore", module=r"PIL\.")  # as in the service: recwarn listens to everything

    async def act(http, router, board):
        return await http.post("/v1/predict", content=image, headers={"content-type": "image/tiff"})

    assert ask(pictured[1], act).status_code == 200
    assert not [each for each in recwarn if "PIL" in each.filename]
