"""Text that comes from elsewhere, made safe to print."""

import unicodedata

DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They change the order in which what follows is displayed; letters that run from right to left need none of them."""


def visible(text: str) -> str:
    """The same text without anything that would steer a terminal instead of being displayed.

    Control characters become their pictures (U+2400 and the like), line breaks stay, tabs become spaces. Marks that
    turn the direction of text are dropped; letters from right to left need none.
    """
    return "".join(map(_visible, text.replace("\r\n", "\n")))


def _visible(sign: str) -> str:
    if sign in "\n\u2028\u2029\x85":
        return "\n"
    if sign == "\t":
        return " "
    if sign in DIRECTION_MARKS:
        return ""
    kind = unicodedata.category(sign)
    if kind == "Cc":
        return chr(0x2400 + ord(sign)) if ord(sign) < 0x20 else ("\u2421" if sign == "\x7f" else "\ufffd")
    return "\ufffd" if kind == "Cs" else sign  # a lone surrogate is half a sign
