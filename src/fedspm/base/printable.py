"""Names of clients, columns, classes and files are other people's words. On a terminal or in a log, a control character
among them could recolour, hide or forge lines; here they are shown as escapes."""

import json
from typing import Any

DIRECTIONS = (0x061C, *range(0x200E, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A))  # which way text runs
CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *DIRECTIONS)
ONE_LINE = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in CONTROLS}
ONE_LINE |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
LINES = {code: text for code, text in ONE_LINE.items() if code != ord("\n")}
IN_JSON = {code: f"\\u{code:04x}" for code in CONTROLS if code != ord("\n")}


def printable(text: str) -> str:
    """The text on one line, with every control character, and every mark that turns the direction of text, as its
    escape: \\x1b, \\n, \\u202e."""
    return text.translate(ONE_LINE)


def printable_lines(text: str) -> str:
    """The same of a text whose line breaks are its own."""
    return text.translate(LINES)


def printable_json(content: Any, **options: Any) -> str:
    """JSON that holds no such character either; whoever parses it gets the content as it was."""
    return json.dumps(content, ensure_ascii=False, **options).translate(IN_JSON)
