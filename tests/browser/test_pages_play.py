"""The pages that play without a kernel, in a browser without Jupyter: the race, the selection stepper, all figures."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("selenium", reason="selenium is not installed (pip install -e .[test])")
from selenium.webdriver.common.keys import Keys

from spin_core.lab.lessons import pages, race
from spin_core.lab.lessons.l3_selection import measure, stepper
from spin_core.lab.results import figures

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
GAMMAS = {"reads": 4, "copies": 4}
WIDTHS = (1280, 1920)
SHADOW = "return document.querySelector('.spin-page').shadowRoot"


def open_page(browser, folder, page) -> object:
    """Show a page alone, and return its root."""
    (folder / "page.html").write_text(f"<!DOCTYPE html><meta charset='utf-8'><body>{page.data}", "utf-8")
    browser.get(f"file://{folder / 'page.html'}")
    return browser.execute_script(SHADOW)


def photograph(browser, folder, name: str) -> None:
    """Pictures at both widths; nothing is cut off or wider than the page."""
    for width in WIDTHS:
        browser.set_window_size(width, 1400)
        browser.save_screenshot(folder / f"{name}_{width}.png")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script("""
            const root = document.querySelector('.spin-page')?.shadowRoot ?? document;
            return [...root.querySelectorAll('button, th, td')].filter(e => e.scrollWidth > e.clientWidth + 1)
                .map(e => e.textContent)""") == []
    severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


def test_the_race_plays_at_the_recorded_times(browser, tmp_path):
    found = race.recorded()
    lanes = race.lanes(found.rows, race.THREE)
    root = open_page(browser, tmp_path, pages.page("race", race.numbers(lanes, "measured")))

    def numbers() -> list[list[int]]:
        return [[int(word) for word in lane.text.split() if word.isdigit()][:2]
                for lane in root.find_elements("css selector", ".numbers")]

    def drag(to: int) -> None:
        browser.execute_script("const c = arguments[0]; c.value = arguments[1]; c.dispatchEvent(new Event('input'))",
                               root.find_element("css selector", "input"), to)

    assert numbers() == [[0, 0]] * 3                # it opens at the start: the reader predicts first
    drag(1000)
    assert numbers() == [[lane["tokens"], len(lane["steps"])] for lane in lanes]
    end = max(lane["seconds"] for lane in lanes)
    drag(500)
    for lane, shown in zip(lanes, numbers()):
        clock, tokens, passes = 0.0, 0, 0
        for step in lane["steps"]:
            clock += step["seconds"]
            if clock <= end / 2:
                tokens, passes = tokens + len(step["emitted"]), passes + 1
        assert shown == [tokens, passes]
    for kind in ("accepted", "own", "drafted"):
        assert root.find_elements("css selector", f".text .{kind}")
    photograph(browser, tmp_path, "race")
    body = root.find_element("css selector", ".page")
    browser.execute_script("arguments[0].focus()", body)
    body.send_keys(Keys.HOME)
    assert numbers() == [[0, 0]] * 3
    body.send_keys(Keys.SPACE)
    time.sleep(min(3.0, end / 2))
    body.send_keys(Keys.SPACE)
    moved = float(root.find_element("css selector", "#time").text.split()[0])
    assert 0.3 * min(3.0, end / 2) < moved < end


def test_the_stepper_steps_jumps_and_compares(browser, tmp_path):
    data = stepper.replayed(measure.shifting(12, shift=False), GAMMAS, ["spin", "greedy"], batch=4, steps=20)
    root = open_page(browser, tmp_path, pages.page("selection", stepper.numbers(data)))
    frames = data["policies"]["spin"]["frames"]

    def find(selector: str):
        return root.find_element("css selector", selector)

    def shown() -> tuple[int, list[tuple[int, str, int]]]:
        step = int(find("#where").text.split()[1]) - 1
        rows = root.find_elements("css selector", "tr[data-request]")
        return step, [(int(row.get_attribute("data-request")),
                       row.find_element("css selector", "td.chosen").get_attribute("data-arm"),
                       int(row.find_element("css selector", ".earned").text.split()[0])) for row in rows]

    def expected(step: int, policy: str = "spin") -> list[tuple[int, str, int]]:
        return [(row["id"], data["arms"][row["chosen"]], row["earned"])
                for row in data["policies"][policy]["frames"][step]["rows"]]

    assert shown() == (0, expected(0)) and not find("#back").is_enabled()
    find("#next").click()
    assert shown() == (1, expected(1))
    find("[data-jump='first exploit']").click()
    exploit = next(i for i, frame in enumerate(frames) if frame["phase"] == "exploit")
    assert shown() == (exploit, expected(exploit)) and "this step exploits" in find("#sentence").text
    find("[data-jump='first switch']").click()
    switch = next(i for i, frame in enumerate(frames) if any(0 <= r["current"] != r["chosen"] for r in frame["rows"]))
    assert shown()[0] == switch
    body = find(".page")
    browser.execute_script("arguments[0].focus()", body)
    body.send_keys(Keys.END, Keys.ARROW_LEFT)
    assert shown() == (len(frames) - 2, expected(len(frames) - 2))
    totals = find("tr[data-policy='greedy']").text.split()
    assert int(totals[1]) == data["policies"]["greedy"]["frames"][len(frames) - 2]["tokens"]
    photograph(browser, tmp_path, "stepper")
    find("option[value='greedy']").click()
    assert shown() == (len(frames) - 2, expected(len(frames) - 2, "greedy"))
    assert "no epochs" in find("#sentence").text
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [dark]})
    browser.execute_script("document.body.style.background = '#111'")
    photograph(browser, tmp_path, "stepper_dark")


def test_the_page_of_all_figures_has_no_missing_picture(browser, tmp_path):
    browser.get(f"file://{figures.default_directory() / 'index.html'}")
    browser.execute_script("document.querySelectorAll('img').forEach(image => { image.loading = 'eager'; })")
    deadline = time.monotonic() + 60
    missing = "return [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"
    while browser.execute_script(missing) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert browser.execute_script(missing) == []
    photograph(browser, tmp_path, "figures")
