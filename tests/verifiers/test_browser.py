"""`verify.html` in Chromium, from disk, with the network cut: the whole corpus, files as a person hands them in, and hostile strings.

What a file says becomes text and nothing else, and not one request leaves the page.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.proof.views import render
from tests.samples import ALICE, STRANGER, TRUST_TEXT, insider, relinked, sections, story
from tests.verifiers.chromium import Chromium, Page
from tests.verifiers.corpus import Case, cases
from tests.verifiers.html import PAGE, asked, differs, question_of
from tests.verifiers.test_agree import library

pytestmark = pytest.mark.service
WHOLE = story().bundle()
HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\u202egnp.exe\u200b<b>\U0001f600 \u0440\u0430y \x00\x1b[31m"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as running:
        yield running


def alone(page: Page) -> None:
    """Nothing was asked of anybody, and the browser had nothing to complain of."""
    assert page.requests == [PAGE.resolve().as_uri()]
    assert page.complaints == []


def handed_in(page: Page, folder: Path, bundle: bytes | None, trust: str | None, **beside: bytes) -> dict[str, Any]:
    """The files, chosen in the fields and checked by the button; the report that the page shows. A file that was chosen never changes."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    for selector, name, raw in (("#bundle", "bundle", bundle), ("#trust", "trust", None if trust is None else trust.encode())):
        if raw is not None:
            (folder / name).write_bytes(raw)
            page.choose(selector, folder / name)
    for name, raw in beside.items():
        (folder / name).write_bytes(raw)
    if beside:
        page.choose("#beside", *(folder / name for name in beside))
    page.evaluate("document.getElementById('check').click()")
    until = time.monotonic() + 60
    while page.evaluate("document.getElementById('check').disabled || document.getElementById('result').hidden"):
        assert time.monotonic() < until, page.complaints
        time.sleep(0.05)
    assert page.evaluate("typeof mandamusReport") == "object", shown(page)
    report: dict[str, Any] = json.loads(page.evaluate("JSON.stringify(mandamusReport)"))
    return report


def shown(page: Page) -> str:
    return str(page.evaluate("document.getElementById('result').innerText"))


# -- the corpus ------------------------------------------------------------------------------------------------------------------
def test_the_corpus_in_a_browser(browser: Chromium) -> None:
    """Every case in one session, the library's exit code and its word on every claim."""
    page = browser.open(PAGE)
    wrong = [found for case in cases() if (found := differs(case, asked(page, question_of(case)), library(case)))]
    assert wrong == []
    alone(page)


def by_code() -> dict[int, Case]:
    """One honest or broken case for each exit code."""
    plain = [case for case in cases() if case.last is None and case.max_age is None and not case.views and not case.blobs and case.bundle]
    return {code: next(case for case in plain if case.codes == (code,) and not case.name.startswith("log/")) for code in range(6)}


@pytest.mark.parametrize("code", range(6))
def test_files_as_a_person_hands_them_in(browser: Chromium, tmp_path: Path, code: int) -> None:
    """One verdict first, in words; the exit code; each claim with its outcome; the same report as JSON."""
    case, page = by_code()[code], browser.open(PAGE)
    report = handed_in(page, tmp_path, case.bundle, case.trust)
    assert report["exit_code"] == code
    verdict = {0: "PROVEN", 1: "NOT PROVEN", 2: "NOT PROVEN"}.get(code, "NOT FULLY CHECKED")
    text = shown(page)
    assert page.evaluate("document.getElementById('verdict').innerText").split("\n")[-1].strip("✓✕! ") == verdict
    assert text.lstrip("✓✕! \n").startswith(verdict)
    assert f"Exit code {code}:" in text
    for claim in report.get("claims", []):
        row = f"[...document.querySelectorAll('tbody tr')].find((row) => row.cells[0].textContent === {json.dumps(claim['name'])})"
        assert claim["outcome"] in page.evaluate(f"{row}.cells[1].textContent")
    assert json.loads(page.evaluate("document.getElementById('json').textContent")) == report
    assert page.evaluate("document.activeElement.id") == "result"
    assert page.evaluate("document.title").startswith(verdict)
    alone(page)


def test_views_and_what_was_seen_last_beside_the_bundle(browser: Chromium, tmp_path: Path) -> None:
    """Files are told apart by what they are."""
    box = sections(WHOLE)
    records = [r.decode(raw) for raw in box["record"]]
    values = {(line["run"], line["seq"], line["part"]): line["value"] for line in map(parse, box["payload"])}
    views, page = render(records, values), browser.open(PAGE)
    last = canon({"mandamus": "last-seen/1", "origins": {}}) + b"\n"
    report = handed_in(page, tmp_path, WHOLE, TRUST_TEXT, **views, seen=last)
    said = {claim["name"]: claim["outcome"] for claim in report["claims"]}
    assert said["views"] == "proven"
    assert said["continuity"] == "not in this bundle"
    views["decision.json"] = views["decision.json"].replace(b'"result":"allow"', b'"result":"deny"')
    assert handed_in(page, tmp_path, WHOLE, TRUST_TEXT, **views)["broken"]["code"] == "MDM-0660"


def test_the_broken_event_is_shown_as_it_stands(browser: Chromium, tmp_path: Path) -> None:
    """The broken event opens, with what was expected and what was found."""
    torn, page = WHOLE.replace(b'"decision":"approve"', b'"decision":"reject"', 1), browser.open(PAGE)
    report = handed_in(page, tmp_path, torn, TRUST_TEXT)
    text = shown(page)
    assert report["broken"]["expected"] in text
    assert report["broken"]["found"] in text
    line = page.evaluate("document.querySelector('.finding pre').textContent")
    assert r.event_hash(line.encode()) == report["broken"]["found"]


# -- hostile strings ---------------------------------------------------------------------------------------------------------------
def harmless(page: Page) -> None:
    """No element was made of a string, none was fetched, nothing ran."""
    assert page.evaluate("document.querySelectorAll('img, b, iframe, object, link, a').length") == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 1
    alone(page)


def test_attack_55_strings_of_a_bundle_are_text(browser: Chromium, tmp_path: Path) -> None:
    """A line that is torn is shown; markup in it is letters, and what cannot be seen is shown by its number."""
    lines = WHOLE[:-1].split(b"\n")
    lines[2] = canon({"text": HOSTILE})
    page = browser.open(PAGE)
    report = handed_in(page, tmp_path, b"\n".join(lines) + b"\n", TRUST_TEXT)
    assert report["exit_code"] == 1
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    text = shown(page)
    assert "</script><img src=x onerror=alert(1)>" in text
    for mark in ("U+2028", "U+202E", "U+200B"):
        assert mark in page.evaluate("[...document.querySelectorAll('.mark')].map((one) => one.textContent).join(' ')")
    assert page.evaluate("[...document.querySelectorAll('.odd')].map((one) => one.textContent).join('')").startswith(
        "\U0001f600\u0440\u0430"
    )
    assert not any(sign in text for sign in "\u202e\u200b\u2028")
    harmless(page)


def test_attack_55_an_insider_names_things_in_markup(browser: Chromium, tmp_path: Path) -> None:
    """Signed and linked, so that the page comes as far as to quote it: an action, a key id."""
    box = sections(story(seal=False).bundle())
    markup = b"<img src=x onerror=alert(1)>"
    at = next(i for i, raw in enumerate(box["record"]) if b'"type":"Voted"' in raw)
    box["record"][at] = re.sub(
        rb'"fact":{"about":"start","action":"[^"]*"', b'"fact":{"about":"start","action":"' + markup + b'"', box["record"][at]
    )
    report = handed_in(page := browser.open(PAGE), tmp_path, insider(box | {"record": relinked(box["record"])}), TRUST_TEXT)
    assert report["exit_code"] == 1
    assert markup.decode() in shown(page)
    harmless(page)
    lines = WHOLE[:-1].split(b"\n")
    envelope = parse(lines[1])
    envelope["signatures"][0]["keyid"] = markup.decode()
    lines[1] = canon(envelope)
    assert handed_in(page, tmp_path, b"\n".join(lines) + b"\n", TRUST_TEXT)["broken"]["code"] == "MDM-0625"
    assert "<img src=x onerr" in shown(page)
    harmless(page)


@pytest.mark.parametrize(
    "trust", ["log <img/src=x/onerror=alert(1)>+00000000+AA==\n", "<script>alert(1)</script>\n", "log \u202eабв\n", "\ufefflog x\n"]
)
def test_attack_55_strings_of_a_trust_file_are_text(browser: Chromium, tmp_path: Path, trust: str) -> None:
    """A file that somebody sent in place of the reader's own."""
    page = browser.open(PAGE)
    assert handed_in(page, tmp_path, WHOLE, trust)["exit_code"] == 2
    assert "NOT PROVEN" in shown(page)
    harmless(page)


@pytest.mark.parametrize("name", ["depth", "no end", "one long line", "nothing but lines"])
def test_attack_54_bombs_are_refused_and_the_page_lives(browser: Chromium, tmp_path: Path, name: str) -> None:
    """Limits come before parsing."""
    deep = b'{"bundle":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    bombs = {"depth": deep, "no end": b"{" * (1 << 20), "one long line": WHOLE + b'"' + b"x" * (1 << 21) + b'"\n',
             "nothing but lines": WHOLE.split(b"\n")[0] + b"\n" * 4_000_001}  # fmt: skip
    page = browser.open(PAGE)
    assert handed_in(page, tmp_path, bombs[name], TRUST_TEXT)["exit_code"] == 1
    assert handed_in(page, tmp_path, WHOLE, TRUST_TEXT)["exit_code"] == 0
    alone(page)


# -- a person in front of it ---------------------------------------------------------------------------------------------------------
def test_no_trust_file_no_verdict_on_the_bundle(browser: Chromium, tmp_path: Path) -> None:
    """Trust never comes from the bundle."""
    assert handed_in(page := browser.open(PAGE), tmp_path, WHOLE, None)["exit_code"] == 2
    assert "no trust root" in shown(page)


def test_a_key_of_somebody_else_proves_nothing(browser: Chromium, tmp_path: Path) -> None:
    other = TRUST_TEXT.replace(str(ALICE.key), str(STRANGER.key))
    assert handed_in(browser.open(PAGE), tmp_path, WHOLE, other)["exit_code"] == 1


def test_files_that_are_dropped_are_told_apart_and_checked(browser: Chromium) -> None:
    """All at once, in any order, whatever they are called."""
    page = browser.open(PAGE)
    files = {"a.txt": TRUST_TEXT, "b.bin": WHOLE.decode()}
    page.evaluate(f"""(() => {{
        const dropped = new DataTransfer();
        for (const [name, text] of Object.entries({json.dumps(files)})) dropped.items.add(new File([text], name));
        document.body.dispatchEvent(new DragEvent("drop", {{ dataTransfer: dropped, bubbles: true }}));
    }})()""")
    until = time.monotonic() + 60
    while page.evaluate("typeof mandamusReport") == "undefined":
        assert time.monotonic() < until, page.complaints
        time.sleep(0.05)
    assert page.evaluate("mandamusReport.verdict") == "PROVEN"
    alone(page)


def test_the_bundle_of_a_period_is_not_taken_for_a_broken_one(browser: Chromium, tmp_path: Path) -> None:
    """It is said who checks it."""
    period = b'{"bundle":"mandamus-log/1","origin":"x","sections":[]}\n'
    report = handed_in(page := browser.open(PAGE), tmp_path, period, TRUST_TEXT)
    assert (report["verdict"], report["exit_code"]) == ("NOT FULLY CHECKED", 5)
    assert "bundle of a period" in shown(page)


def test_the_report_can_be_taken_along(browser: Chromium, tmp_path: Path) -> None:
    """Where the clipboard is closed the text is selected instead; either is said."""
    page = browser.open(PAGE)
    handed_in(page, tmp_path, WHOLE, TRUST_TEXT)
    page.evaluate("document.getElementById('copy').click()")
    until = time.monotonic() + 30
    while not (said := page.evaluate("document.querySelector('#copy + [role=status]').textContent")):
        assert time.monotonic() < until, page.complaints
    assert said.strip() in ("Copied.", "Select and copy it from below.")
    if "Select" in said:
        assert json.loads(page.evaluate("getSelection().toString()"))["verdict"] == "PROVEN"


def test_everything_has_a_name_and_a_place(browser: Chromium, tmp_path: Path) -> None:
    """By keyboard and by ear: labels, one h1, headings in order, a live region, scopes of the table, outcomes in words."""
    page = browser.open(PAGE, width=360)
    handed_in(page, tmp_path, WHOLE, TRUST_TEXT)
    assert page.evaluate("[...document.querySelectorAll('input, progress')].every((one) => one.labels?.length || one.ariaLabel)")
    assert page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((one) => one.tagName).join(' ')") == "H1 H2 H2"
    assert page.evaluate("document.getElementById('status').getAttribute('role')") == "status"
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("[...document.querySelectorAll('th')].every((one) => one.scope)")
    outcomes = set(
        page.evaluate("[...document.querySelectorAll('tbody tr')].map((row) => row.cells[1].innerText.replace(/[^a-z ]/g, '').trim())")
    )
    assert outcomes == {"proven", "not in this bundle"}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


def test_by_keyboard_alone(browser: Chromium, tmp_path: Path) -> None:
    """Tab reaches every control in the order of the page, and Enter checks."""
    page = browser.open(PAGE)
    (tmp_path / "bundle").write_bytes(WHOLE)
    (tmp_path / "trust").write_text(TRUST_TEXT)
    page.choose("#bundle", tmp_path / "bundle")
    page.choose("#trust", tmp_path / "trust")
    page.evaluate("document.body.focus()")
    order = []
    for _ in range(4):
        key = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        page.call("Input.dispatchKeyEvent", type="keyDown", **key)
        page.call("Input.dispatchKeyEvent", type="keyUp", **key)
        order.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert order == ["bundle", "trust", "SUMMARY", "check"]
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    until = time.monotonic() + 60
    while page.evaluate("typeof mandamusReport") == "undefined":
        assert time.monotonic() < until
    assert page.evaluate("mandamusReport.verdict") == "PROVEN"
