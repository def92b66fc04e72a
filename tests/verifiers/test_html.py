"""`verify.html` without a browser: how it is built, what it may do, and its sources in node against the library.

The same corpus, the same bytes turned at random, the same foreign vectors; any disagreement is red.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mandamus.core.canonical import canon
from mandamus.proof import verify
from mandamus.proof.keys import verify_raw
from mandamus.proof.verify import Beside
from tests.samples import TRUST_TEXT, story, trust
from tests.servers.needs import needs
from tests.verifiers.corpus import CLOCK, cases
from tests.verifiers.html import NODE, PAGE, ROOT, Node, differs, question, question_of
from tests.verifiers.test_agree import library

VECTORS = ROOT / "tests" / "data" / "vectors"
HTML = PAGE.read_text(encoding="utf-8")
WHOLE = story().bundle()
FORBIDDEN = """
    innerHTML outerHTML insertAdjacent document.write eval( Function( fetch( XMLHttpRequest WebSocket EventSource import( importScripts
    sendBeacon localStorage sessionStorage indexedDB serviceWorker postMessage window.open location.
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as running:
        yield running


def part(tag: str) -> str:
    """What stands between the only pair of these tags."""
    (found,) = re.findall(f"<{tag}>(.*?)</{tag}>", HTML, re.DOTALL)
    return str(found)


# -- the page as a file ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["build_html.py", "records_table.py"])
def test_what_is_committed_is_what_the_sources_make(name: str) -> None:
    """The page, and the table of record types in it, are built; nobody edits them."""
    done = subprocess.run([sys.executable, str(ROOT / "verifiers" / name), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_policy_lets_run_this_script_and_nothing_else() -> None:
    """No network: the hashes are those of what stands between the tags, and no other source is allowed."""
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', HTML)
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    digest = {tag: base64.b64encode(hashlib.sha256(part(tag).encode()).digest()).decode() for tag in ("script", "style")}
    assert rules == {
        "default-src": ["'none'"], "script-src": [f"'sha256-{digest['script']}'"], "style-src": [f"'sha256-{digest['style']}'"],
        "base-uri": ["'none'"], "form-action": ["'none'"], "require-trusted-types-for": ["'script'"],
    }  # fmt: skip


def test_the_page_holds_nothing_that_fetches_and_nothing_that_writes_markup() -> None:
    """Attack 55: strings become text nodes. A page that cannot write markup cannot be made to."""
    script = part("script")
    for word in FORBIDDEN.split():
        assert word not in script, word
    outside = HTML.replace(script, "")
    assert not re.search(r"\bon[a-z]+\s*=", outside), "an event handler in an attribute"
    assert not re.search(r"\b(src|href)\s*=", outside), "something to fetch"
    assert "http://" not in HTML.replace("http://www.w3.org", "")


def test_every_source_has_its_place_and_is_short_enough_to_read() -> None:
    """One list says the order; what is not in it is not in the page. Each opens with what it is."""
    order = json.loads((ROOT / "verifiers" / "src" / "order.json").read_text())
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "verifiers" / "src").glob("*.js")}
    assert sorted([*order, "page.js"]) == sorted(files)
    for name, text in files.items():
        assert text.startswith("// "), name
        assert "The rule a newcomer would break" in text, name
        assert len(text.splitlines()) <= 400, name


# -- the corpus ------------------------------------------------------------------------------------------------------------------
def test_the_corpus_in_node(node: Node) -> None:
    """Every case: the right exit code, and on each claim the library's own word."""
    wrong = [found for case in cases() if (found := differs(case, node.ask(question_of(case)), library(case)))]
    assert wrong == []


def test_the_whole_report_is_the_librarys(node: Node) -> None:
    """Not only the outcomes: the words and the findings too, on an honest bundle and on a torn one."""
    torn = WHOLE.replace(b'"decision":"approve"', b'"decision":"reject"', 1)
    for bundle in (WHOLE, torn):
        plain = json.loads(msgspec.json.encode(verify(bundle, trust(), Beside(now=CLOCK)).as_json()))
        assert node.ask(question(bundle, TRUST_TEXT)) == plain


# -- bytes turned at random --------------------------------------------------------------------------------------------------------
def turned(raw: bytes, dice: random.Random) -> bytes:
    """One change: a byte flipped, put in, taken out, a line doubled, dropped or moved."""
    data, at = bytearray(raw), dice.randrange(len(raw))
    match dice.randrange(6):
        case 0:
            data[at] ^= 1 << dice.randrange(8)
        case 1:
            data.insert(at, dice.choice(b'\x00 "{}[],:\\0129\n\xc3\xef'))
        case 2:
            del data[at]
        case kind:
            lines = raw[:-1].split(b"\n")
            one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
            if kind == 3:
                lines.insert(other, lines[one])
            elif kind == 4:
                del lines[one]
            else:
                lines[one], lines[other] = lines[other], lines[one]
            return b"\n".join(lines) + b"\n"
    return bytes(data)


def differences(node: Node, seed: int, count: int) -> list[str]:
    """What a browser cannot check (ML-DSA) it says so of; that bundle has a case of its own and is not changed here."""
    dice = random.Random(seed)
    honest = [case for case in cases() if not case.attack and case.trust is not None and case.now is not None and "ml_dsa" not in case.name]
    out = []
    for number in range(count):
        case = dice.choice(honest)
        raw = turned(case.bundle, dice)
        changed = dataclasses.replace(case, bundle=raw, codes=(0, 1, 2, 3, 4, 5))
        if wrong := differs(changed, node.ask(question_of(changed)), library(changed)):
            out.append(f"seed {seed}, change {number}: {wrong}")
    return out


@pytest.mark.parametrize("seed", [1, 2])
def test_changed_bytes_are_judged_alike(node: Node, seed: int) -> None:
    """A sample of the differential fuzzing."""
    assert differences(node, seed, 150) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_changed_bytes_are_judged_alike(node: Node, seed: int) -> None:
    """The long walk."""
    assert differences(node, seed, 3000) == []


# -- foreign vectors -----------------------------------------------------------------------------------------------------------------
def test_foreign_vectors_in_javascript() -> None:
    """914 edge cases of Ed25519 as the library judges them, canonical JSON, inclusion proofs of RFC 6962."""
    needs("node")
    done = subprocess.run(["node", str(NODE / "vectors.mjs"), str(VECTORS)], capture_output=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    edges = json.loads((VECTORS / "ed25519" / "ed25519vectors.json").read_bytes())
    assert len(edges) == 914
    assert found["ed25519"] == [verify_raw(bytes.fromhex(c["key"]), c["msg"].encode(), bytes.fromhex(c["sig"])) for c in edges]
    written = {p.name: hashlib.sha256(p.read_bytes().rstrip(b"\n")).hexdigest() for p in (VECTORS / "jcs" / "output").iterdir()}
    assert {name for name, digest in found["jcs"].items() if digest != written[name]} == {"values.json"}  # 1e30: refused by choice
    proofs = json.loads((VECTORS / "merkle" / "proofs.json").read_text())["inclusion"]
    assert len(proofs) > 90
    assert found["merkle"] == [not proof["wantErr"] for proof in proofs]


# -- what a browser may lack ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lack", ["delete globalThis.crypto", "crypto.subtle.importKey = async () => { throw new Error() }",
                                  "crypto.subtle.verify = async () => true", "crypto.subtle.verify = async () => false"])  # fmt: skip
def test_without_sound_signatures_nothing_is_green(lack: str, tmp_path: Path) -> None:
    """A browser that cannot check Ed25519, or says yes or no to everything, is found out by known signatures: cannot check now."""
    needs("node")
    (tmp_path / "bundle").write_bytes(WHOLE)
    (tmp_path / "trust").write_text(TRUST_TEXT)
    program = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ core }} from {json.dumps((NODE / "core.mjs").as_uri())};
        {lack};
        const read = (name) => new Uint8Array(readFileSync(name));
        console.log(JSON.stringify(await core().verify({{ bundle: read("bundle"), trust: read("trust") }})));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "-e", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    report = json.loads(done.stdout)
    assert (report["verdict"], report["exit_code"]) == ("NOT FULLY CHECKED", 5)
    assert [claim["outcome"] for claim in report["claims"]] == ["proven", "cannot check now"]


def test_the_file_of_what_was_seen_last_must_be_one(node: Node) -> None:
    """What cannot be read is not taken for a first look."""
    for raw in (b"", b"{}\n", canon({"mandamus": "last-seen/1", "origins": {}}), canon({"mandamus": "last-seen/2", "origins": {}}) + b"\n"):
        assert node.ask(question(WHOLE, TRUST_TEXT, last=raw))["exit_code"] == 2
