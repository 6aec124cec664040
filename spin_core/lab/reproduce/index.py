"""``figures/index.html``: the paper's figures with what is published, modelled and measured; then those of the
lessons."""

import re
from html import escape
from pathlib import Path
from string import Template

from spin_core.files import writing
from spin_core.lab.bench import hypotheses
from spin_core.lab.reproduce import comparison
from spin_core.lab.results import figures

PAGE = Path(figures.__file__).with_name("page.html")
OTHER = "other figures"


def index(directory: str | Path | None = None) -> Path:
    """Write ``index.html`` into ``directory`` (default: the checkout's figures). Raises ValueError for a file that does
    not describe a figure."""
    folder = Path(directory) if directory is not None else figures.default_directory()
    folder.mkdir(parents=True, exist_ok=True)
    documents = {document["name"]: document for document in figures.read(folder)}
    report = hypotheses.stored(folder) or hypotheses.stored()
    numbers: dict[str, list[comparison.Line]] = {}
    if report:
        for line in comparison.lines(comparison.Results(folder), report):
            numbers.setdefault(line.row.figure, []).append(line)
    sections = {"The paper's figures": [documents[name] for name in numbers]}
    for document in documents.values():
        if document["name"] not in numbers:
            sections.setdefault(_lesson(document["notebook"]), []).append(document)
    sections = {title: some for title, some in sections.items() if some}
    page = Template(PAGE.read_text("utf-8")).substitute(
        count=len(documents), contents="\n".join(_contents(title, some) for title, some in sections.items()),
        sections="\n".join(_section(title, some, numbers) for title, some in sections.items())
        or "<p>No figures yet.</p>")
    with writing(folder / "index.html") as part:
        part.write_text(page, "utf-8")
    return folder / "index.html"


def _lesson(notebook: str | None) -> str:
    number, _, words = (notebook or "").partition("_")
    return f"Lesson {int(number)}: {words.replace('_', ' ')}" if number.isdigit() else OTHER


def _id(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _contents(title: str, documents: list[dict]) -> str:
    small = "".join(f'<a class="thumb" href="#{d["name"]}" title="{escape(_finding(d))}"><img loading="lazy" '
                    f'src="{d["name"]}.png" alt="">{_words(d["name"])}</a>' for d in documents)
    return f'<h3><a href="#{_id(title)}">{escape(title)}</a></h3><div class="thumbs">{small}</div>'


def _words(name: str) -> str:
    return escape(re.sub(r"^lesson\d+_", "", name).replace("_", " "))


def _finding(document: dict) -> str:
    """What the figure says: its finding, else its caption's first sentence."""
    return document.get("finding") or re.split(r"(?<=[.!?])\s", document["caption"], maxsplit=1)[0]


def _section(title: str, documents: list[dict], numbers: dict[str, list[comparison.Line]]) -> str:
    shown = "\n".join(_entry(document, numbers.get(document["name"], [])) for document in documents)
    return f'<h2 id="{_id(title)}">{escape(title)}</h2>\n{shown}'


def _entry(document: dict, lines: list[comparison.Line]) -> str:
    name, notebook = escape(document["name"]), document["notebook"]
    kinds = [kind for kind in figures.KINDS if any(s["kind"] == kind for s in document["series"])]
    labels = " ".join(f'<span class="kind {kind}">{kind}</span>' for kind in kinds)
    sources = "; ".join(dict.fromkeys(_source(series) for series in document["series"]))
    finding, caption = _finding(document), document["caption"]
    rest = caption if document.get("finding") else caption[len(finding):]
    lesson = f'<a href="../notebooks/{escape(notebook)}.ipynb">{escape(_lesson(notebook))}</a> · ' if notebook else ""
    profile = f" · profile {escape(document['profile'])}" if document["profile"] else ""
    notes = f"<p>{escape(document['notes'])}</p>" if document["notes"] else ""
    return f"""<figure id="{name}">
<h3>{escape(finding)}</h3>
{_table(lines)}<a href="{name}.svg"><img loading="lazy" src="{name}.png" alt="{escape(caption)}"></a>
<figcaption><p>{labels} {escape(rest.strip())}</p>{notes}
<p class="small">{lesson}<a href="{name}.json">data</a> · <a href="{name}.png">PNG</a> ·
<a href="{name}.svg">SVG</a>{profile}</p>
<p class="small">{escape(sources)}</p></figcaption>
</figure>"""


def _table(lines: list[comparison.Line]) -> str:
    """Published, modelled and measured side by side."""
    if not lines:
        return ""
    rows = ["".join(f"<th>{head}</th>" for head in ("", *comparison.HEADS)),
            *("".join(f"<td>{cell}</td>" for cell in line.cells("<b>{}</b>")) for line in lines)]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>\n"


def _source(series: dict) -> str:
    """Where a series' numbers come from, in a few words."""
    origin = series.get("provenance") or {}
    machine = ", ".join(str(origin[key]) for key in ("gpu", "cpu", "machine") if origin.get(key))
    said = ", ".join(part for part in (series.get("source"), machine) if part)
    return f"{series['kind']}: {said}" if said else series["kind"]
