"""Slides of the lessons: ``python -m spin_core.lab.lessons.slides`` writes ``slides/LESSON.slides.html``.

What is shown is chosen by the tag ``slide`` of a lesson's cells. Of a tagged text each section becomes a slide, without
its exercises and fine print; a tagged figure becomes a slide whose title is the finding, the bold sentence below the
figure. Text before a section's first heading becomes the speaker's notes (key S). The figures are the stored ones.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

from spin_core.lab.reproduce import ROOT

LEFT_OUT = ("### Exercise", "## Two questions", "## What to read next")
STYLE = """<style>
.reveal { font-size: 24px } .reveal h1 { font-size: 1.7em } .reveal h2, .reveal h3 { font-size: 1.2em }
.reveal section { text-align: left } .reveal img { max-height: 560px; margin: auto; display: block }
</style>"""


def deck(notebook: NotebookNode) -> NotebookNode:
    """The tagged cells of a lesson as cells that nbconvert makes slides of. Raises ValueError if there are none."""
    slides: list[NotebookNode] = []

    def add(kind: str, text: str) -> None:
        if text.strip():
            slides.append(new_markdown_cell(text.strip(), metadata={"slideshow": {"slide_type": kind}}))

    for place, cell in enumerate(notebook.cells):
        if "slide" not in cell.metadata.get("tags", ()):
            continue
        if cell.cell_type == "code":
            pictures = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
            for picture in pictures:
                add("slide", f"{_finding(notebook.cells[place + 1:])}\n\n"
                             f"<img src='data:image/png;base64,{picture.strip()}'>")
            continue
        text = re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL)
        for section in re.split(r"^(?=##?#? )", text, flags=re.MULTILINE):
            if not section.startswith(LEFT_OUT):
                add("slide" if section.startswith("#") else "notes", section)
    if not slides:
        raise ValueError("no cell has the tag slide")
    slides[0].source = f"{STYLE}\n\n{slides[0].source}"
    return new_notebook(cells=slides, metadata=notebook.metadata)


def _finding(cells: Sequence[NotebookNode]) -> str:
    """The bold sentence with which the next text begins, as a heading; short ones are calls to play with a widget."""
    text = next((cell.source for cell in cells if cell.cell_type == "markdown"), "")
    bold = re.match(r"\*\*(.+?)\*\*", text, re.DOTALL)
    return f"### {bold[1]}" if bold and len(bold[1].split()) > 3 else ""


def write(numbers: Sequence[int], folder: Path, **options) -> list[Path]:
    """Write the slides of the lessons with these numbers into ``folder``. ``options`` of nbconvert's exporter, such as
    ``reveal_url_prefix`` and ``require_js_url``, name copies of what a browser otherwise loads from the network."""
    folder.mkdir(parents=True, exist_ok=True)
    exporter = SlidesExporter(reveal_scroll=True, reveal_width="1280", reveal_height="720", **options)
    written = []
    for number in numbers:
        path, = (ROOT / "notebooks").glob(f"{number:02}_*.ipynb")
        html, _ = exporter.from_notebook_node(deck(nbformat.read(path, as_version=4)))
        written.append(folder / f"{path.stem}.slides.html")
        written[-1].write_text(html)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m spin_core.lab.lessons.slides", description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", type=int, default=[1, 3, 5, 7], help="numbers (default: 1 3 5 7)")
    parser.add_argument("--output", type=Path, default=ROOT / "slides", metavar="DIR")
    args = parser.parse_args()
    print("\n".join(map(str, write(args.lessons, args.output))))


if __name__ == "__main__":
    main()
