"""Bundles in parts and in other forms, as a person makes them: withheld, member by member, a page, views, SCITT, a whole period."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from mandamus.cli.export import parsed
from mandamus.cli.page import page, text
from mandamus.errors import Misuse
from mandamus.proof import verify
from tests.attack.test_bundle_shown import only, told
from tests.e2e.cli_world import World
from tests.logged import demanding, proofs
from tests.samples import story
from tests.servers.needs import needs


@pytest.fixture(name="world")
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("MANDAMUS_")]:
        monkeypatch.delenv(name)
    return World(tmp_path)


def paid(world: World) -> str:
    world.ok("run", "payout.py:small", "Pay the invoice")
    (world.folder / "trust").write_text(world.ok("key", "trust").out)
    run: str = world.ok("show", "last", "--json").data["run_id"]
    return run


def test_a_bundle_with_proofs_of_the_log(world: World) -> None:
    run = paid(world)
    world.ok("bundle", run, "-o", "run.bundle")
    said = world.ok("verify", "run.bundle", "--trust", "trust", "--json", "--state", "seen").data
    outcomes = {claim["name"]: claim["outcome"] for claim in said["claims"]}
    assert (outcomes["checkpoint"], outcomes["inclusion"], outcomes["continuity"]) == ("proven", "proven", "proven")
    assert said["checkpoint"]["size"] == json.loads(Path("seen").read_text())["origins"][said["checkpoint"]["origin"]]["size"]


def test_what_is_withheld_and_what_is_shown_of_the_rest(world: World) -> None:
    """The tool's data are confidential, so what it gave back can be shown member by member."""
    run = paid(world)
    world.ok("bundle", run, "-o", "run.bundle", "--withhold", "*/args", "--only", "*/output=id")
    raw = Path("run.bundle").read_bytes()
    assert b"Acme" not in re.sub(rb'"part":"(facts|reply|input|card|decision|manifest)".*', b"", raw)
    assert raw.count(b'"show":"withheld"') == 1
    assert world("verify", "run.bundle", "--trust", "trust").code == 3
    assert world("bundle", run, "--withhold", "everything").code == 2


def test_the_page(world: World) -> None:
    run = paid(world)
    world.ok("bundle", run, "-o", "run.bundle")
    world.ok("export", "run.bundle", "--as", "html", "--trust", "trust")
    html = Path("run.html").read_text()
    assert html.index("<h1>PROVEN</h1>") < html.index("Claims") < html.index("Events of the run")
    assert "default-src &#x27;none&#x27;" in html
    assert re.search(r"<(script|img|link|iframe|object|form|a)\b|href|src=|url\(", html) is None


def test_the_views_of_a_bundle(world: World) -> None:
    run = paid(world)
    world.ok("bundle", run, "-o", "run.bundle", "--views", "one")
    world.ok("export", "run.bundle", "--as", "views", "--trust", "trust", "-o", "two")
    names = sorted(p.name for p in Path("one").iterdir())
    assert names == ["agent_run.json", "decision.json", "tool_trace.json"]
    assert all((Path("one") / n).read_bytes() == (Path("two") / n).read_bytes() for n in names)
    world.ok("verify", "run.bundle", "--trust", "trust", "--views", "two")


def test_a_broken_bundle_is_dressed_up_as_nothing(world: World) -> None:
    run = paid(world)
    world.ok("bundle", run, "-o", "run.bundle")
    raw = Path("run.bundle").read_bytes()
    Path("run.bundle").write_bytes(raw.replace(b'"attempt":1', b'"attempt":2', 1))
    assert world("export", "run.bundle", "--as", "views", "--trust", "trust", "-o", "two").code == 1
    assert world("export", "run.bundle", "--as", "html", "--trust", "trust").code == 1
    html = Path("run.html").read_text()
    assert "<h1>NOT PROVEN</h1>" in html
    assert "Events of the run" not in html
    assert not Path("two").exists()


def test_scitt(world: World) -> None:
    needs("cbor2")
    from mandamus.drivers import export_scitt
    from mandamus.proof.trust import Trust

    run = paid(world)
    world.ok("bundle", run, "-o", "run.bundle")
    world.ok("export", "run.bundle", "--as", "scitt", "--trust", "trust")
    told_ = export_scitt.check(Path("run.cose").read_bytes(), Trust.parse(Path("trust").read_bytes()))
    assert told_.run == run


def test_a_period_and_the_auditors_sample(world: World) -> None:
    """Three runs, one of them waiting; every one is in it, the log's files show all records, and the seed draws the sample."""
    world.people()
    runs = [paid(world), paid(world)]
    world.waiting()
    Path("trust").write_text(world.ok("key", "trust").out)
    data = world.ok("export", "log", "--as", "bundle", "--json").data
    assert (data["form"], data["numbers"]) == ("bundle", [1, 3])
    said = world.ok("verify", "log.period.bundle", "--trust", "trust", "--json", "--sample", "2", "--seed", "s").data
    words = next(claim["says"] for claim in said["claims"] if claim["name"] == "population")
    assert words == "runs 1-3, none missing, 1 open"
    assert len(said["sample"]) == 2
    assert set(runs) & set(said["sample"])
    world.ok("log", "export", "files")
    full = world.ok("verify", "log.period.bundle", "--trust", "trust", "--json", "--log", "files").data
    assert next(claim["outcome"] for claim in full["claims"] if claim["name"] == "records") == "proven"
    assert world("verify", "log.period.bundle", "--trust", "trust", "--sample", "2").code == 2
    later = world("export", "log", "--as", "bundle", "--period", "2300-01-01..2300-02-01")
    assert later.code == 2


def test_what_is_asked_for_wrongly(world: World) -> None:
    assert world("export", "log", "--as", "html").code == 2
    assert world("export", "run.bundle", "--as", "bundle").code == 2
    assert world("export", "run.bundle", "--as", "html", "--trust", "nowhere").code == 2
    for words in ("2026-11-01", "2026-12-01..2026-11-01", "yesterday..today"):
        with pytest.raises(Misuse):
            parsed(words)
    assert parsed("2026-11-01..2026-11-02")[1] - parsed("2026-11-01..2026-11-02")[0] == 86_400_000_000


def test_everything_on_the_page_is_text() -> None:
    """Attack 55: markup, bidi marks, zero-width letters and line separators of a payload stand there as what they are."""
    assert text("</pre><script>\u202ealert(1)\u200b\u2028\x1b&\"'") == (
        '&lt;/pre&gt;&lt;script&gt;<span class="mark">U+202E</span>alert(1)<span class="mark">U+200B</span>'
        '<span class="mark">U+2028</span><span class="mark">U+001B</span>&amp;&quot;&#x27;'
    )
    tale = told(receipt={"name": "</pre><script>alert(1)</script>\u202e", "other": 1})
    raw = only(tale, ("name",))
    html = page(raw, verify(raw, demanding())).decode()
    assert "<script" not in html
    assert "not shown of it: 1 member" in html
    assert "\u202e" not in html


def test_the_page_is_the_same_twice_and_says_the_log() -> None:
    tale = story()
    raw = tale.bundle(proofs=proofs(tale))
    report = verify(raw, demanding())
    assert page(raw, report) == page(raw, report)
    assert "22 leaves" in page(raw, report).decode()
