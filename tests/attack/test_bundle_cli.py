"""The auditor's command: verdict first, the one exit table, and nothing installed but msgspec and cryptography."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from mandamus.cli.verify import main
from mandamus.core.canonical import accept
from mandamus.proof import views
from tests.samples import BUNDLE_KEY, LOG_KEY, STRANGER, TRUST_TEXT, Story, story

ALLOWED = ("msgspec", "cryptography", "_cffi_backend", "cffi", "mandamus", "typing_extensions")
# A finder that knows the standard library and the allowed packages only, as in an environment where nothing else is installed.
ALONE = f"""
import sys
class Alone:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {ALLOWED!r}:
            raise ModuleNotFoundError(name, name=name)
for name in [n for n in sys.modules if n.partition(".")[0] not in sys.stdlib_module_names and n != "__main__"]:
    del sys.modules[name]
sys.meta_path.insert(0, Alone())
from mandamus.cli.verify import main
code = main(sys.argv[1:])
foreign = {{n.partition(".")[0] for n in sys.modules}} - set(sys.stdlib_module_names) - set({ALLOWED!r}) - {{"__main__", "__mp_main__"}}
assert not [n for n in foreign if not n.startswith("_")], foreign
sys.exit(code)
"""


@pytest.fixture(name="case")
def _case(tmp_path: Path) -> Path:
    (tmp_path / "run.bundle").write_bytes(story().bundle())
    (tmp_path / "trust").write_text(TRUST_TEXT)
    return tmp_path


def run(case: Path, *more: str, bundle: str = "run.bundle", trust: str | None = "trust") -> int:
    return main([str(case / bundle), *([] if trust is None else ["--trust", str(case / trust)]), *more])


def test_a_valid_bundle_exits_0_and_says_so_first(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(case) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "PROVEN  (complete and valid)"
    assert any(line.split() == ["proven", "votes:"] or ("proven" in line and "votes: 2 signed votes" in line) for line in out)


def test_json_is_one_object(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(case, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["verdict"], said["exit_code"], said["state"], said["events"]) == ("PROVEN", 0, "sealed", 19)
    assert {claim["outcome"] for claim in said["claims"]} == {"proven", "not in this bundle"}


def test_a_changed_byte_exits_1_and_names_the_event(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = case / "run.bundle"
    path.write_bytes(path.read_bytes().replace(b'"landing":30000', b'"landing":39000'))
    assert run(case) == 1
    out = capsys.readouterr().out
    assert out.startswith("NOT PROVEN  (broken)\nMDM-0642  event 11 ActionStarted: hash is not the one event 12 names\n  expected  ")
    assert "events 12 to 18 are proven, 0 to 10 are not attested" in out
    assert run(case, "--json") == 1
    assert json.loads(capsys.readouterr().out)["broken"]["where"] == "event 11 ActionStarted"


def test_a_wrong_trust_root_exits_1_with_the_reason(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (case / "other").write_text(TRUST_TEXT.replace(str(BUNDLE_KEY.key), str(STRANGER.key)))
    assert run(case, trust="other") == 1
    assert "not trusted" in capsys.readouterr().out
    (case / "other").write_text(TRUST_TEXT.replace(str(LOG_KEY.key), str(STRANGER.key)))
    assert run(case, trust="other") == 1
    assert "log that is not trusted" in capsys.readouterr().out


def test_usage_no_trust_root_and_nothing_to_verify_exit_2(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (case / "empty").write_bytes(b"")
    (case / "bad").write_text("logg x\n")
    assert run(case, trust=None) == 2
    assert run(case, trust="empty") == 2
    assert run(case, bundle="empty") == 2
    assert run(case, bundle="missing") == 2
    assert run(case, trust="missing") == 2
    assert run(case, trust="bad") == 2
    assert main([]) == 2
    assert run(case, "--trst", "x") == 2
    assert run(case, "--views", str(case / "nowhere")) == 2
    said = capsys.readouterr()
    assert "no trust root was given" in said.out
    assert "bad:1" in said.err
    assert "Traceback" not in said.out + said.err


def test_errors_are_json_too(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(case, "--json", bundle="missing") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "MDM-0195"


def test_help_explains_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "4 valid so far, the run is not finished" in " ".join(capsys.readouterr().out.split())


def test_open_and_withheld_have_their_codes(case: Path) -> None:
    (case / "open").write_bytes(story(seal=False).bundle())
    (case / "withheld").write_bytes(story().bundle(withheld=lambda key: key[2] == "output"))
    assert run(case, bundle="open") == 4
    assert run(case, bundle="withheld") == 3


def test_views_are_compared(case: Path) -> None:
    tale = story()
    values = {(p.run, p.seq, p.part): accept(p.bytes[32:]) for p in tale.chain.payloads}
    for name, raw in views.render(tale.chain.records, values).items():
        (case / name).write_bytes(raw)
    assert run(case, "--views", str(case)) == 0
    (case / "decision.json").write_bytes(b"{}\n")
    assert run(case, "--views", str(case)) == 1


def test_names_in_a_bundle_cannot_move_the_cursor(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Attack 55: control, bidi and look-alike characters arrive as escapes."""
    raw = (case / "run.bundle").read_bytes()
    (case / "evil").write_bytes(raw.replace(b"mandamus/1", "\u202e\u001b[2J".encode(), 1))
    assert run(case, bundle="evil") == 1
    assert capsys.readouterr().out.isascii()


def test_fifty_changed_bytes(case: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw, rnd = (case / "run.bundle").read_bytes(), random.Random(50)
    for _ in range(50):
        at = rnd.randrange(len(raw))
        (case / "changed").write_bytes(raw[:at] + bytes([(raw[at] + rnd.randrange(1, 256)) % 256]) + raw[at + 1 :])
        assert run(case, bundle="changed") == 1
        said = capsys.readouterr().out
        assert " event " in said or " line " in said


@pytest.mark.slow
def test_fifty_changed_bytes_and_fifty_processes(case: Path) -> None:
    """As somebody at a shell does it, spread over the whole file: one bit, another printable character, anything else, in turn."""
    raw, rnd = (case / "run.bundle").read_bytes(), random.Random(51)
    argv = [sys.executable, "-m", "mandamus", "verify", str(case / "changed"), "--trust", str(case / "trust")]
    for n in range(50):
        at = (2 * n + 1) * len(raw) // 100
        byte = (raw[at] ^ (1 << rnd.randrange(8)), 0x41 + (raw[at] == 0x41), (raw[at] + rnd.randrange(1, 256)) % 256)[n % 3]
        (case / "changed").write_bytes(raw[:at] + bytes([byte]) + raw[at + 1 :])
        done = subprocess.run(argv, capture_output=True, text=True, cwd=case, check=False)
        assert (done.returncode, done.stderr) == (1, ""), (at, byte)
        assert done.stdout.startswith("NOT PROVEN")
        assert " event " in done.stdout or " line " in done.stdout


def test_an_auditor_needs_msgspec_and_cryptography_only(case: Path) -> None:
    argv = [sys.executable, "-c", ALONE, str(case / "run.bundle"), "--trust", str(case / "trust"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=case, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verdict"] == "PROVEN"


def test_the_bundle_is_the_same_bytes_every_time() -> None:
    assert Story().tell().bundle() == Story().tell().bundle()
