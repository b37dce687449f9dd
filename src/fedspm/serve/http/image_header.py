"""What an image file says of itself before anything of it is decoded. A few bytes can ask for hours of work: Pillow
reads the chunks of a PNG, the segments of a JPEG, the strips and tags of a TIFF and the run lengths of a BMP one by
one in Python, and libjpeg goes through the whole image for every scan of thirty bytes."""

import struct

from fedspm.base.errors import FedSPMError

SERVED = ("PNG", "JPEG", "WEBP", "TIFF", "BMP")  # what a stranger may send
CHUNKS = 8192  # of a PNG: 16 MB in pieces of 2 kB
SCANS = 64  # of a JPEG: a progressive one has ten
SEGMENTS = 1024  # of a JPEG before its first scan: 256 of them hold a colour profile of 16 MB
TAGS, STRIPS = 256, 8192  # of a TIFF; so many numbers may a tag have
TEXT, BYTES = 2, (1, 7)  # types of tags that are read in one piece
UNCOMPRESSED = (0, 3, 6)  # of a BMP: plain, or plain behind masks
OLDEST_BMP = 12  # bytes of a header that knows no compression
LAYOUT = range(254, 340)  # tags of the image itself, of which Pillow looks at every number, also at bytes


def require_cheap(content: bytes) -> None:
    """Refuse a file that is none of `SERVED`, or that asks for much more work than its pixels need."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        if _has_many_chunks(content):
            raise FedSPMError(f"it has more than {CHUNKS} chunks; save it again as a plain PNG")
    elif content.startswith(b"\xff\xd8\xff"):
        if content.count(b"\xff\xda") > SCANS:  # inside a scan, 255 is followed by 0
            raise FedSPMError(f"it has more than {SCANS} scans; save it again as a plain JPEG")
        _require_few_segments(content)
    elif content.startswith(b"BM"):
        header, compression = (int.from_bytes(content[place : place + 4], "little") for place in (14, 30))
        if header != OLDEST_BMP and compression not in UNCOMPRESSED:
            raise FedSPMError("it is a compressed BMP; save it as PNG")
    elif content[:4] in (b"II*\0", b"MM\0*"):
        _require_few_strips(content)
    elif not (content.startswith(b"RIFF") and content[8:12] == b"WEBP"):
        raise FedSPMError(f"it is none of {', '.join(SERVED)}")


def _has_many_chunks(content: bytes) -> bool:
    place = 8
    for _ in range(CHUNKS):
        place += 12 + int.from_bytes(content[place : place + 4], "big")  # length, kind and checksum around it
        if place >= len(content):
            return False
    return True


def _require_few_segments(content: bytes) -> None:
    place = 2
    for _ in range(SEGMENTS):
        marker = content[place + 1 : place + 2]
        if content[place : place + 1] != b"\xff" or marker in (b"", b"\xda"):  # the first scan, or what Pillow refuses
            return
        alone = marker in (b"\x01", b"\xff") or b"\xd0" <= marker <= b"\xd9"  # a marker without a length, or filling
        place += (1 if marker == b"\xff" else 2) if alone else 2 + int.from_bytes(content[place + 2 : place + 4], "big")
    raise FedSPMError(f"it has more than {SEGMENTS} segments; save it again as a plain JPEG")


def _require_few_strips(content: bytes) -> None:
    order = "<" if content.startswith(b"II") else ">"
    try:
        (place,) = struct.unpack_from(f"{order}I", content, 4)
        (tags,) = struct.unpack_from(f"{order}H", content, place)
        if tags > TAGS:
            raise FedSPMError(f"it has more than {TAGS} tags; save it again as a plain TIFF")
        entries = [struct.unpack_from(f"{order}HHI", content, place + 2 + 12 * k) for k in range(tags)]
    except struct.error as error:
        raise FedSPMError("it is cut off") from error
    if any(count > STRIPS and kind != TEXT and (kind not in BYTES or tag in LAYOUT) for tag, kind, count in entries):
        raise FedSPMError(f"it has more than {STRIPS} strips, tiles or numbers in a tag; save it again as a plain TIFF")
