"""Small pages that play without a kernel: HTML and a script, stored in the notebook with all their numbers.

A page is a script in ``html/``, NAME.js; ``common.js`` and ``style.css`` are shared. Code hosts remove scripts,
so :func:`show_page` puts a picture before the page; where scripts run, the page hides that picture.
"""

import io
import json
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from ipywidgets import Output, VBox
from IPython.display import HTML, Image, display
from matplotlib.figure import Figure
from PIL import Image as Picture

from spin_core.lab.lessons import look
from spin_core.lab.lessons.panel import Work

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
if ({covers} && before) before.style.display = "none";
{script}
}})();
</script>"""


def page(name: str, data: dict, covers: bool = False) -> HTML:
    """The page ``html/NAME.js`` with its numbers. The script finds them as ``data``, and an element as ``body``.
    ``covers``: the page hides the output before it."""
    script = (FILES / "common.js").read_text("utf-8") + (FILES / f"{name}.js").read_text("utf-8")
    return HTML(_FRAME.format(id=f"spin-{secrets.token_hex(6)}", covers=_literal(covers), data=_literal(data),
                              script=script, style=_literal((FILES / "style.css").read_text("utf-8"))))


def live(make: Callable[[Work], HTML | None], label: str, tooltip: str) -> VBox:
    """A button; the page that ``make(work)`` returns appears below it. None: it was stopped before there was one."""
    out = Output()

    def job(work: Work) -> None:
        shown = make(work)
        if shown is not None:
            out.outputs = ()
            out.append_display_data(shown)
        work.say("stopped" if shown is None else "done")

    return VBox([Work(job, label, tooltip), out])


def show_page(name: str, data: dict, picture: bytes, alt: str) -> None:
    """Display a page, and before it ``picture`` (a PNG, animated or not) for where scripts do not run."""
    display(Image(picture, format="png", width=round(look.WIDTH * 100), alt=f"{name}: {alt}"))
    display(page(name, data, covers=True))


def animated(figures: Iterable[Figure], seconds: float, dpi: int = 72) -> bytes:
    """The figures one after another as a PNG that plays for ever; the last stays three times as long, and is what a
    viewer shows that plays none."""
    frames = []
    for figure in figures:
        pixels = io.BytesIO()
        with look.style():
            figure.savefig(pixels, format="png", dpi=dpi)
        frames.append(Picture.open(pixels).convert("RGB"))
    colours = frames[-2].quantize(24, dither=Picture.Dither.NONE)     # a moment in which all kinds of tokens are seen
    frames = [frame.quantize(palette=colours, dither=Picture.Dither.NONE) for frame in frames]
    out, each = io.BytesIO(), 1000 * seconds / len(frames)
    frames[-1].save(out, "PNG", save_all=True, append_images=frames, default_image=True, loop=0,
                    duration=[each] * (len(frames) - 1) + [3 * each])
    return out.getvalue()


def _literal(value) -> str:
    """A value for a script inside a page."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
