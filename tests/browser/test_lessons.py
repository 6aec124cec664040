"""Every lesson in JupyterLab, as a student meets it: it runs without an error, its widgets work.

On one core beside other work, as on a shared server: ``taskset -c 1 python -m pytest -m browser -n 0 tests/browser``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from lab_server import Lab

pytest.importorskip("selenium", reason="selenium is not installed (pip install -e .[test])")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]

CELL_SECONDS = 600      # for one cell on a seventh of a core; a quick run of a lesson takes about one minute on two
PATIENCE = 90           # seconds for anything else
READY = """
window.panel = [...(window.jupyterapp?.shell?.widgets('main') ?? [])].find(widget => widget.context?.isReady);
return !!window.panel;
"""
START = """
window.outcome = null;
jupyterapp.shell.activateById(panel.id);
panel.context.sessionContext.ready.then(() => jupyterapp.commands.execute('notebook:run-all-cells'))
    .then(() => { window.outcome = 'done'; }, error => { window.outcome = String(error); });
"""
IDLE = "return panel.context.sessionContext.session?.kernel?.status === 'idle'"
DONE = "return [window.outcome, panel.content.widgets.filter(cell => cell.model.executionCount).length]"
CELLS = "return panel.context.model.toJSON().cells"
PIXELS = """
const image = arguments[0];
if (!image.complete || !image.naturalWidth) return null;
const canvas = document.createElement('canvas');
canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
canvas.getContext('2d').drawImage(image, 0, 0);
return canvas.toDataURL();
"""


def wait(condition: Callable[[], object], seconds: float, what: str):
    """The first true value of ``condition``; fails after ``seconds``, saying what did not happen."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.2)


def run(page, lab: Lab, name: str) -> list[dict]:
    """Open a lesson, run all its cells, and return them with their outputs."""
    page.get(lab.address(name))
    wait(lambda: page.execute_script(READY), PATIENCE, "the notebook to open")
    page.execute_script(START)
    outcome, done = None, 0
    while outcome is None:      # on one core of a busy machine a lesson takes minutes: each cell has its own deadline
        outcome, done = wait(lambda: (now := page.execute_script(DONE)) != [None, done] and now, CELL_SECONDS,
                             f"the cell behind {done} finished ones")
    assert outcome == "done"
    wait(lambda: page.execute_script(IDLE), PATIENCE, "the kernel to be idle")
    return page.execute_script(CELLS)


def pictures(page) -> list[WebElement]:
    """The pictures that belong to a widget."""
    return page.find_elements(By.CSS_SELECTOR, ".jp-OutputArea-output img.widget-image")


def panel_of(picture: WebElement) -> WebElement:
    return picture.find_element(By.XPATH, "ancestor::*[contains(@class, 'widget-vbox')][1]")


def press_arrow(handle: WebElement) -> None:
    """Move a slider by keyboard, to the side where there is room."""
    at_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
    handle.send_keys(Keys.ARROW_LEFT if at_end else Keys.ARROW_RIGHT)


def choose_another(menu: WebElement) -> None:
    """The first or the second entry of a menu, whichever is not chosen."""
    select = Select(menu)
    select.select_by_index(int(select.options[0].is_selected()))


def moves(panel: WebElement) -> list[tuple[str, Callable[[], None]]]:
    """One move for every kind of control in a panel, by mouse or by keyboard."""
    # replaying a run that has not changed shows the same picture, so that button is no move
    buttons = [b for b in panel.find_elements(By.CSS_SELECTOR, "button.jupyter-button")
               if b.is_enabled() and not b.text.startswith("replay")]
    handles = panel.find_elements(By.CSS_SELECTOR, ".noUi-handle")
    selects = panel.find_elements(By.CSS_SELECTOR, "select")
    return ([(f"button {b.text!r}", b.click) for b in buttons[:1]]
            + [("slider", lambda h=h: press_arrow(h)) for h in handles]
            + [("menu", lambda s=s: choose_another(s)) for s in selects])


def picture_changes(page, panel: WebElement, name: str, move: Callable[[], None]) -> None:
    """Make a move and see another picture: another address, and other pixels."""
    def now() -> tuple[str, str | None]:
        image = panel.find_element(By.CSS_SELECTOR, "img.widget-image")
        return image.get_attribute("src"), page.execute_script(PIXELS, image)

    source, pixels = wait(lambda: (n := now())[1] and n, PATIENCE, "the first picture")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", panel)
    move()
    wait(lambda: (n := now())[1] and n[1] != pixels and n[0] != source, PATIENCE,
         f"{name} to change the picture")


WATCH = """
const [panel, control, sign] = arguments;
window.seen = null;
new MutationObserver((_, watcher) => {
    if (panel.textContent.includes(sign)) { window.seen = performance.now() - window.pressed; watcher.disconnect(); }
}).observe(panel, {childList: true, subtree: true, characterData: true});
for (const kind of ['click', 'change', 'keydown'])
    control.addEventListener(kind, () => { window.pressed = performance.now(); }, {capture: true});
"""
AT_ONCE = 200           # milliseconds from a click to the sign that a widget works, on a machine that is not crowded


def sign_after(page, panel: WebElement, control: WebElement, act: Callable[[], None], what: str,
               sign: str = "⏳") -> None:
    """Do something to a control; the panel says within ``AT_ONCE`` that it works."""
    page.execute_script(WATCH, panel, control, sign)
    act()
    took = wait(lambda: page.execute_script("return window.seen"), PATIENCE, f"a sign after {what}")
    crowd = max(1.0, os.getloadavg()[0] / os.cpu_count())       # processes for each core: so much slower is this machine
    print(f"{what}: a sign after {took:.0f} ms, {crowd:.1f} processes for each core")
    assert took < AT_ONCE * crowd, f"{what}: a sign after {took:.0f} ms, {crowd:.1f} processes for each core"


def button(panel: WebElement, word: str) -> WebElement:
    return next(b for b in panel.find_elements(By.CSS_SELECTOR, "button.jupyter-button") if b.text.strip() == word)


def menu(panel: WebElement, option: str) -> WebElement:
    """The menu that has this option."""
    return next(m for m in panel.find_elements(By.CSS_SELECTOR, "select")
                if any(o.text == option for o in Select(m).options))


def drive_dashboard(page) -> None:
    """Start the live dashboard, change its settings while it serves, stop it; read its numbers from the page."""
    goodput = page.find_element(By.CSS_SELECTOR, "[data-number='goodput']")
    panel = goodput.find_element(By.XPATH, "ancestor::*[contains(@class, 'widget-vbox')][1]")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", panel)

    def text(selector: str) -> str:
        # in one go: the view is replaced while it is read
        return page.execute_script("return arguments[0].querySelector(arguments[1])?.textContent", panel, selector)

    def number(name: str) -> str:
        return text(f"[data-number='{name}']")

    def rate() -> float:
        return float(number("goodput").split()[0].replace(",", ""))

    def choose(option: str) -> None:
        control = menu(panel, option)
        sign_after(page, panel, control, lambda: Select(control).select_by_visible_text(option), option,
                   "⏳ setting")

    before, start = number("counted over"), button(panel, "start")
    sign_after(page, panel, start, start.click, "start")
    wait(lambda: number("counted over") != before and rate() > 0, PATIENCE, "the dashboard's numbers to move")
    policy = "table[data-table='settings'] tr:nth-child(2) td"          # SPIN, too, may have drafted nothing lately
    for setting in ("fixed:none", "fixed:ngram", "chat", "personas", "instructions", "fixed:none"):
        choose(setting)
        wait(lambda: setting in text("table[data-table='settings'] tr:nth-child(2)") and rate() > 0, PATIENCE,
             f"{setting} to serve")
    wait(lambda: text(policy) == "fixed:none" and number("acceptance") == "–", PATIENCE,
         "plain decoding, in which nothing is accepted")
    button(panel, "stop").click()
    wait(lambda: "stopped" in page.execute_script("return arguments[0].textContent", panel), PATIENCE,
         "the dashboard to stop")
    rows = panel.find_elements(By.CSS_SELECTOR, "table[data-table='settings'] tr")[1:]      # behind the header
    settings = [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "td")] for row in rows]
    assert [row[:2] for row in settings] == [
        ["fixed:none", "instructions"], ["fixed:ngram", "instructions"], ["fixed:ngram", "personas"],
        ["fixed:ngram", "chat"], ["fixed:ngram", "mix"], ["fixed:none", "mix"]]      # the present one and the last five
    assert settings[0][6].endswith("(now)") and f"{float(settings[0][4]):,.1f} tokens/s" == number("goodput")
    assert all(float(row[4]) > 0 for row in settings)


def drive_editor(page) -> None:
    """Grow a tree by keyboard; a shape that is none is refused in words, and the picture stays."""
    shape = page.find_element(By.CSS_SELECTOR, ".widget-text input")
    panel = shape.find_element(By.XPATH, "ancestor::*[contains(@class, 'widget-vbox')][1]")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", panel)

    def source() -> str:
        return panel.find_element(By.CSS_SELECTOR, "img.widget-image").get_attribute("src")

    def enter(value: str) -> None:
        shape.send_keys(Keys.CONTROL, "a")
        shape.send_keys(Keys.NULL, value)
        shape.send_keys(Keys.ENTER)

    before = source()
    enter("2,x")
    wait(lambda: "2,x" in page.execute_script("return arguments[0].textContent", panel), PATIENCE, "a complaint")
    assert source() == before and "Error" not in panel.text
    sign_after(page, panel, shape, lambda: enter("1,1,1"), "a shape")
    wait(lambda: source() != before, PATIENCE, "another tree")


def screenshots(page, folder: Path, name: str) -> None:
    """The whole lesson at two widths; nothing that a widget or page shows is wider than its cell."""
    for width in (1280, 1920):
        page.set_window_size(width, 1400)
        height = page.execute_script("return Math.max(...[...document.querySelectorAll('.jp-Notebook, "
                                     ".jp-WindowedPanel-viewport')].map(e => e.scrollHeight))")
        page.set_window_size(width, min(int(height) + 200, 16_000))
        page.execute_script("document.querySelectorAll('.jp-WindowedPanel-outer').forEach(e => { e.scrollTop = 0; })")
        time.sleep(1)
        page.save_screenshot(folder / f"{name}_{width}.png")
        cut = page.execute_script("""
            return [...document.querySelectorAll('.jp-OutputArea-output .widget-label, .jp-OutputArea-output button')]
                .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)""")
        assert cut == [], f"labels that are cut off at {width} pixels"
        twice = page.execute_script("""
            return [...document.querySelectorAll('.jp-OutputArea-output .spin-page')]
                .map(e => e.closest('.jp-OutputArea-child').previousElementSibling)
                .filter(e => e?.querySelector('img')?.offsetParent).length""")
        assert twice == 0, "a page and the picture that stands in for it are both shown"


def test_a_lesson_runs_and_its_widgets_work(notebook: str, lab: Lab, browser, tmp_path: Path):
    cells = run(browser, lab, notebook)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    errors = [f"{o['ename']}: {o['evalue']}" for o in outputs if o["output_type"] == "error"]
    assert errors == []
    assert all(cell["execution_count"] for cell in code)
    browser.save_screenshot(tmp_path / "ran.png")

    widgets = sum("application/vnd.jupyter.widget-view+json" in o.get("data", {}) for o in outputs)
    views = ".jp-OutputArea-output > .jupyter-widgets"
    wait(lambda: len(browser.find_elements(By.CSS_SELECTOR, views)) >= widgets, PATIENCE, f"{widgets} widgets")
    found = pictures(browser)
    for i, picture in enumerate(found):
        panel = panel_of(picture)
        available = moves(panel)
        assert available, "a widget without a control"
        for k, (name, move) in enumerate(available):
            picture_changes(browser, panel, f"widget {i + 1}, {name}", move)
            panel.screenshot(str(tmp_path / f"widget_{i + 1}_{k + 1}.png"))

    screenshots(browser, tmp_path, notebook.removesuffix(".ipynb"))
    severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []
    browser.execute_script("panel.context.sessionContext.shutdown()")      # the next lesson needs the cores


def test_the_live_widgets_say_at_once_that_they_work_obey_and_stop(lab: Lab, browser, tmp_path: Path):
    """The live dashboard of lesson 7 and the tree editor of lesson 8, alone, also in Jupyter's dark theme."""
    cells = ["from spin_core import zoo\nfrom spin_core.engine import Engine\n"
             "from spin_core.lab.lessons.l7_paper_figures import live\n"
             "from spin_core.lab.lessons.l8_token_trees.widgets import editor\nfamily = zoo.load('smollm2')",
             "live.dashboard(live.Server(family, at_once=2, tokens=12))",
             "editor(Engine(family, 'none', max_batch=1, max_len=256), {'rain': 'Write a line about rain.'}, "
             "[['fed-1L-4k']], max_new_tokens=8)"]
    # without a kernel's name Jupyter asks for one
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=kernel),
                   lab.folder / "dashboard.ipynb")
    run(browser, lab, "dashboard.ipynb")
    wait(lambda: browser.find_elements(By.CSS_SELECTOR, "[data-number='goodput']"), PATIENCE, "the dashboard")
    drive_dashboard(browser)
    drive_editor(browser)
    screenshots(browser, tmp_path, "live")
    browser.execute_script("return jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    screenshots(browser, tmp_path, "live_dark")
    browser.execute_script("panel.context.sessionContext.shutdown()")
