"""Image files that are small, well-formed enough for a decoder, and ask for very much work."""

import io
import struct
import zlib

from PIL import Image

MEGABYTE = 10**6


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def encoded(kind, side=8, mode="RGB", **options):
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, kind, **options)
    return buffer.getvalue()


def png_of_chunks(size):
    """Pillow reads chunk after chunk in Python: 1.3 million of them in 9 seconds."""
    image = encoded("PNG")
    end = image.index(b"IDAT") - 4
    return image[:end] + png_chunk(b"tIME", b"") * (size // 12) + image[end:]


def jpeg_of_segments(size):
    """Pillow reads segment after segment in Python."""
    image = encoded("JPEG")
    return image[:2] + b"\xff\xe5\x00\x02" * (size // 4) + image[2:]


def jpeg_of_filling(size):
    """Bytes between two segments, which Pillow skips one by one."""
    image = encoded("JPEG")
    return image[:2] + b"\xff" * size + image[2:]


def jpeg_of_scans(size, side=4000):
    """Every scan of thirty bytes is a walk through all pixels: 20 ms each, hours for one file."""
    image = encoded("JPEG", side, progressive=True)
    scan = image[image.rfind(b"\xff\xda") : -2]
    return image[:-2] + scan * (size // len(scan)) + image[-2:]


def bmp_of_runs(size, side=4000):
    """Run lengths, which Pillow reads in Python: 7 seconds for 8 MB."""
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, size, 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + size, 0, 0, 1078) + header + bytes(1024) + b"\x01\x05" * (size // 2)


def tiff_of_strips(size):
    """A strip per row, which Pillow lists one by one: 30 seconds for 8 MB."""
    strips = size // 4
    tags = [(256, 4, 1, 8), (257, 4, 1, strips), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    tags += [(273, 4, strips, 8), (277, 3, 1, 1), (278, 4, 1, 1), (279, 4, strips, 8)]
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + 4 * strips) + struct.pack("<I", 8) * strips + directory


def tiff_of_fractions(size):
    """Numbers of the format of a sample, as fractions: Pillow makes an object of each, 14 seconds for 14 MB."""
    count = size // 8
    tags = [(256, 4, 1, 8), (257, 4, 1, 8), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8)]
    tags += [(277, 3, 1, 1), (278, 4, 1, 8), (279, 4, 1, 64), (339, 5, count, 8)]
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + 8 * count) + struct.pack("<II", 1, 1) * count + directory


def metadata_of_fractions(size):
    """Metadata of a photograph that stands on its side: whoever turns it makes an object of each fraction."""
    count = size // 8
    tags = [(0x0112, 3, 1, 6), (40_000, 5, count, 64)]
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    return (b"II*\0" + struct.pack("<I", 8) + directory).ljust(64, b"\0") + struct.pack("<II", 1, 1) * count


def png_of_metadata(size):
    image = encoded("PNG")
    return image[:33] + png_chunk(b"eXIf", metadata_of_fractions(size)) + image[33:]


def png_of_text(size):
    """The same as compressed text: a thousand bytes are half a million."""
    digits = metadata_of_fractions(min(size, 400_000)).hex().encode()
    text = b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n%8d\n" % (len(digits) // 2) + digits)
    image = encoded("PNG")
    return image[:33] + png_chunk(b"zTXt", text) + image[33:]


def webp_of_metadata(size):
    return encoded("WEBP", exif=b"Exif\0\0" + metadata_of_fractions(size))


def jpeg_of_metadata(size):
    """In many segments, which Pillow joins."""
    metadata, image = metadata_of_fractions(size), encoded("JPEG")
    parts = [b"Exif\0\0" + metadata[start : start + 60_000] for start in range(0, len(metadata), 60_000)]
    segments = [b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts]
    return image[:2] + b"".join(segments) + image[2:]


COSTLY = {
    "PNG of chunks": png_of_chunks,
    "JPEG of segments": jpeg_of_segments,
    "JPEG of filling": jpeg_of_filling,
    "JPEG of scans": jpeg_of_scans,
    "BMP of run lengths": bmp_of_runs,
    "TIFF of strips": tiff_of_strips,
    "TIFF of fractions": tiff_of_fractions,
    "PNG of metadata": png_of_metadata,
    "PNG of text": png_of_text,
    "WebP of metadata": webp_of_metadata,
    "JPEG of metadata": jpeg_of_metadata,
}
