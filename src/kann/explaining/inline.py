"""A page inside a notebook, whole and without network."""

from html import escape

from kann.checks import require_whole_number


class InlinePage:
    """Shows a page in a frame of its own when a notebook displays it."""

    def __init__(self, html: str, *, height: int):
        self._html, self._height = html, require_whole_number(height, "height")

    def _repr_html_(self) -> str:
        # The page is the frame's own content: no address is asked for, and the notebook's styles do not reach it.
        return (
            f'<iframe title="Explanation" sandbox="allow-scripts allow-downloads allow-modals" '
            f'style="width:100%;height:{self._height}px;border:0" srcdoc="{escape(self._html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"InlinePage({len(self._html) / 1e6:.1f} MB; display it in a notebook, or write it with .report(path))"
