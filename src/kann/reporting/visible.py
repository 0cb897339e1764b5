"""Text from elsewhere, made safe to print."""

import unicodedata

DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They change the order in which the text after them is displayed. Hebrew and Arabic letters need none of them."""

LINE_BREAKS = "\n\u2028\u2029\x85"

PICTURE_OF_NULL = 0x2400
"""Unicode has a picture of each control character below U+0020, in the same order from here on."""

PICTURE_OF_DELETE = "\u2421"
REPLACEMENT = "\ufffd"


def visible(text: str) -> str:
    r"""The same text without the characters that would steer a terminal instead of being displayed.

    Control characters become their pictures (U+2400 and the like) and tabs become spaces; line breaks stay. Marks that
    change the direction of text are dropped.

    >>> visible("red: \x1b[31m")
    'red: ␛[31m'
    """
    return "".join(map(_visible_character, text.replace("\r\n", "\n")))


def _visible_character(character: str) -> str:
    if character in LINE_BREAKS:
        return "\n"
    if character == "\t":
        return " "
    if character in DIRECTION_MARKS:
        return ""
    category = unicodedata.category(character)
    if category == "Cc":
        return _picture(character)
    if category == "Cs":  # a surrogate without its other half, which cannot be encoded
        return REPLACEMENT
    return character


def _picture(control: str) -> str:
    """The character that stands for a control character."""
    if ord(control) < 0x20:
        return chr(PICTURE_OF_NULL + ord(control))
    if control == "\x7f":
        return PICTURE_OF_DELETE
    return REPLACEMENT
