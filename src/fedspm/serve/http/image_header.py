"""What an image file says of itself before anything of it is decoded. A few bytes can ask for hours of work: Pillow
reads the chunks of a PNG, the segments of a JPEG, the strips and tags of a TIFF and the run lengths of a BMP one by
one in Python, and libjpeg goes through the whole image for every scan of thirty bytes."""

import struct

from fedspm.base.errors import FedSPMError

SERVED = ("PNG", "JPEG", "WEBP", "TIFF", "BMP")  # what a stranger may send
CHUNKS = 8192  # of a PNG: 16 MB in pieces of 2 kB
SCANS = 64  # of a JPEG: a progressive one has ten
SEGMENTS = 1024  # of a JPEG before its first scan: 256 of them hold a colour profile of 16 MB
TAGS, DIRECTORIES = 256, 8  # of a TIFF, and of the metadata of a photograph, which is one
NUMBERS = 20_000  # in all of their tags; two of them list the strips
TEXT, BYTES = 2, (1, 7)  # types of tags that are read in one piece
UNCOMPRESSED = (0, 3, 6)  # of a BMP: plain, or plain behind masks
OLDEST_BMP = 12  # bytes of a header that knows no compression
TIFF, EXIF = (b"II*\0", b"MM\0*"), b"Exif\0\0"  # how they begin, and what says so in a JPEG
AS_TEXT = b"Raw profile type exif\0"
DIRECTORY_TAGS = (330, 34665, 34853, 40965)  # where further directories are
LAYOUT = range(254, 340)  # tags of the image itself, of which Pillow looks at every number, also at bytes


def require_cheap(content: bytes) -> None:
    """Refuse a file that is none of `SERVED`, or that asks for much more work than its pixels need."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        _require_cheap_chunks(content)
    elif content.startswith(b"\xff\xd8\xff"):
        if content.count(b"\xff\xda") > SCANS:  # inside a scan, 255 is followed by 0
            raise FedSPMError(f"it has more than {SCANS} scans; save it again as a plain JPEG")
        _require_cheap_segments(content)
    elif content.startswith(b"BM"):
        header, compression = (int.from_bytes(content[place : place + 4], "little") for place in (14, 30))
        if header != OLDEST_BMP and compression not in UNCOMPRESSED:
            raise FedSPMError("it is a compressed BMP; save it as PNG")
    elif content[:4] in TIFF:
        _require_few_numbers(content)
    elif content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        place = 12
        while place + 8 <= len(content):
            size = int.from_bytes(content[place + 4 : place + 8], "little")
            if content[place : place + 4] == b"EXIF":
                _require_cheap_metadata(content[place + 8 : place + 8 + size])
            place += 8 + size + size % 2
    else:
        raise FedSPMError(f"it is none of {', '.join(SERVED)}")


def _require_cheap_chunks(content: bytes) -> None:
    place = 8
    for _ in range(CHUNKS):
        size, kind = int.from_bytes(content[place : place + 4], "big"), content[place + 4 : place + 8]
        start = place + 8
        if kind == b"eXIf":
            _require_cheap_metadata(content[start : start + size])
        if kind in (b"tEXt", b"zTXt", b"iTXt") and content[start : start + len(AS_TEXT)] == AS_TEXT:
            raise FedSPMError("it has metadata of a photograph as text; save it again as a plain PNG")
        place = start + size + 4
        if place >= len(content):
            return
    raise FedSPMError(f"it has more than {CHUNKS} chunks; save it again as a plain PNG")


def _require_cheap_segments(content: bytes) -> None:
    place, photograph = 2, b""
    for _ in range(SEGMENTS):
        marker = content[place + 1 : place + 2]
        if content[place : place + 1] != b"\xff" or marker in (b"", b"\xda"):  # the first scan, or what Pillow refuses
            return _require_cheap_metadata(photograph)
        alone = marker in (b"\x01", b"\xff") or b"\xd0" <= marker <= b"\xd9"  # a marker without a length, or filling
        size = int.from_bytes(content[place + 2 : place + 4], "big")
        said = content[place + 4 : place + 2 + size]
        if marker == b"\xe1" and said.startswith(EXIF):
            photograph += said.removeprefix(EXIF)  # Pillow joins them
        place += (1 if marker == b"\xff" else 2) if alone else 2 + size
    raise FedSPMError(f"it has more than {SEGMENTS} segments; save it again as a plain JPEG")


def _require_cheap_metadata(content: bytes) -> None:
    """Of a photograph: a TIFF without an image, of which Pillow makes numbers to find out which side is up."""
    while content.startswith(EXIF):
        content = content.removeprefix(EXIF)
    if content and content[:4] not in TIFF:
        raise FedSPMError("its metadata cannot be read; save it again without")
    if content:
        _require_few_numbers(content)


def _require_few_numbers(content: bytes) -> None:
    """Of numbers in tags Pillow makes objects, one by one: 6 to 14 seconds for a file of 14 MB."""
    order = "<" if content.startswith(b"II") else ">"
    waiting, seen, numbers = [int.from_bytes(content[4:8], "little" if order == "<" else "big")], set[int](), 0
    while waiting:
        place = waiting.pop()
        seen.add(place)
        length = content[place : place + 2]
        tags = struct.unpack(f"{order}H", length)[0] if len(length) == 2 else 0
        if tags > TAGS or len(seen) > DIRECTORIES:
            raise FedSPMError(f"it has more than {TAGS} tags, or {DIRECTORIES} directories; save it again without them")
        entries = content[place + 2 : place + 2 + 12 * tags]
        for tag, kind, count, value in struct.iter_unpack(f"{order}HHII", entries[: len(entries) // 12 * 12]):
            if tag in DIRECTORY_TAGS and value not in seen:
                waiting.append(value)
            if kind != TEXT and (kind not in BYTES or tag in LAYOUT):
                numbers += count
    if numbers > NUMBERS:
        raise FedSPMError(f"it has more than {NUMBERS} strips, tiles or numbers in tags; save it again as a plain TIFF")
