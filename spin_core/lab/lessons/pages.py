"""Small pages that play without a kernel: HTML and a script, stored in the notebook with all their numbers.

A page is a script in ``html/``, NAME.js; ``common.js`` and ``style.css`` are shared. Code hosts remove scripts,
so :func:`show_page` puts a picture before the page; where scripts run, the page hides that picture.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterable
from pathlib import Path

from IPython.display import HTML, Image, display
from matplotlib.figure import Figure
from PIL import Image as Picture

from spin_core.lab.lessons import look

FILES = Path(__file__).with_name("html")

_FRAME = """<div id="{id}" class="spin-page" data-lm-suppress-shortcuts="true"></div>
<script>
(function () {{
const page = document.getElementById("{id}");
if (!page || page.shadowRoot) return;
const root = page.attachShadow({{mode: "open"}}), data = {data};
const style = document.createElement("style"), body = document.createElement("div");
style.textContent = {style};
body.className = "page"; body.tabIndex = 0;
root.append(style, body);
// the picture in the output before this one is for hosts that run no scripts
const before = page.closest(".jp-OutputArea-child, .output_area")?.previousElementSibling;
if (before?.querySelector('img[alt^="{name}:"]')) before.style.display = "none";
{script}
}})();
</script>"""


def page(name: str, data: dict) -> HTML:
    """The page ``html/NAME.js`` with its numbers. The script finds them as ``data``, and an element as ``body``."""
    script = (FILES / "common.js").read_text("utf-8") + (FILES / f"{name}.js").read_text("utf-8")
    return HTML(_FRAME.format(id=f"spin-{secrets.token_hex(6)}", name=name, data=_literal(data), script=script,
                              style=_literal((FILES / "style.css").read_text("utf-8"))))


def show_page(name: str, shown: HTML, picture: bytes, alt: str) -> None:
    """Display the page ``shown``, and before it ``picture`` (a PNG, animated or not) for where scripts do not run."""
    display(Image(picture, format="png", width=round(look.WIDTH * 100), alt=f"{name}: {alt}"))
    display(shown)


def animated(figures: Iterable[Figure], seconds: float, dpi: int = 72) -> bytes:
    """The figures one after another as an animated PNG that begins anew for ever; the last stays three times as long."""
    frames = []
    for figure in figures:
        pixels = io.BytesIO()
        with look.style():
            figure.savefig(pixels, format="png", dpi=dpi)
        frames.append(Picture.open(pixels).convert("RGB"))
    colours = frames[-2].quantize(24, dither=Picture.Dither.NONE)         # a moment in which all kinds of tokens are seen
    frames = [frame.quantize(palette=colours, dither=Picture.Dither.NONE) for frame in frames]
    out, each = io.BytesIO(), 1000 * seconds / len(frames)
    frames[0].save(out, "PNG", save_all=True, append_images=frames[1:], duration=[each] * (len(frames) - 1) + [3 * each],
                   loop=0)
    return out.getvalue()


def _literal(value) -> str:
    """A value for a script inside a page."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
