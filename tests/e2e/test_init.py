"""`mandamus init`: what it writes runs, passes its own tests and is certified; nothing is overwritten. Examples are the templates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mandamus.cli.init import contents, templates

ROOT = Path(__file__).parents[2]
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("MANDAMUS_", "PYTEST_", "PAYOUT_"))} | {"PYTHONUTF8": "1"}
PROMPTS = {"payout": "Pay 50,000.00 USD to Acme Suppliers", "minimal": "What time is it?"}


def mandamus(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mandamus", *args]
    return subprocess.run(command, cwd=cwd, env=ENV, text=True, capture_output=True, timeout=120, stdin=subprocess.DEVNULL)


@pytest.fixture(params=["payout", "minimal"])
def template(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def project(template: str, tmp_path: Path) -> Path:
    done = mandamus("init", template, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / template


def written(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_templates_are_those_of_the_help(tmp_path: Path) -> None:
    assert templates() == ["minimal", "payout"]
    assert "minimal, payout" in mandamus("init", "nothing", cwd=tmp_path).stderr


def test_it_writes_at_most_eight_files_and_ignores_its_state(project: Path, template: str) -> None:
    files = written(project)
    assert files == contents(template)
    assert len(files) <= 8
    assert b".mandamus/" in files[".gitignore"]
    assert {"agent.yaml", "policies/rules.yaml"} <= files.keys()


def test_its_own_tests_pass(project: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, env=ENV, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout


def test_it_runs_offline(project: Path, template: str) -> None:
    done = mandamus("run", "agent.yaml", PROMPTS[template], "--json", cwd=project)
    assert done.returncode == {"payout": 4, "minimal": 0}[template], done.stderr
    assert json.loads(done.stdout)["state"] == {"payout": "suspended", "minimal": "completed"}[template]
    assert (project / ".mandamus" / "run.db").exists()
    assert not (project / ".mandamus" / "bank.jsonl").exists()


def test_payout_from_two_keys_to_a_bundle(tmp_path: Path) -> None:
    """What the text behind `init` tells a person to do."""

    def do(*args: str, code: int = 0) -> str:
        done = mandamus(*args, cwd=tmp_path / "payout")
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    assert mandamus("init", "payout", cwd=tmp_path).returncode == 0
    for name in ("alice", "bob"):
        do("key", "new", f"{name}.pem", "--name", name)
        do("key", "enroll", "--principal", f"p-{name}", "--role", "treasurer", "--key", f"{name}.pem")
    waits = json.loads(do("run", "agent.yaml", PROMPTS["payout"], "--json", code=4))["waiting"][0]
    for name in ("alice", "bob"):
        do("approve", waits["action"], "--key", f"{name}.pem", "--digest", waits["digest"])
    do("resume", "last")
    do("bundle", "last", "-o", "run.bundle")
    assert do("verify", "run.bundle", "--trust", ".mandamus/trust").startswith("PROVEN")
    assert len((tmp_path / "payout" / ".mandamus" / "bank.jsonl").read_text().splitlines()) == 1


def test_payout_is_certified(tmp_path: Path) -> None:
    assert mandamus("init", "payout", cwd=tmp_path).returncode == 0
    done = mandamus("certify", "agent.py", "--sqlite", "4", cwd=tmp_path / "payout")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exactly once" in done.stdout


# -- nothing is overwritten ------------------------------------------------------------------------------------------------------
def test_dry_run_lists_and_writes_nothing(template: str, tmp_path: Path) -> None:
    done = mandamus("init", template, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == sorted(f"{template}/{name}" for name in contents(template))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["policies/rules.yaml", ".gitignore", "agent.yaml"])
def test_one_file_that_is_there_keeps_all_from_being_written(name: str, template: str, tmp_path: Path) -> None:
    mine = tmp_path / "here" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = mandamus("init", template, "here", cwd=tmp_path)
    assert done.returncode == 2
    assert "MDM-0821" in done.stderr
    assert written(tmp_path) == {f"here/{name}": b"mine"}


def test_beside_other_files_it_is_welcome(template: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    done = mandamus("init", template, ".", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] is True
    assert written(tmp_path) == contents(template) | {"README.md": b"mine"}


def test_a_file_where_the_folder_should_be(template: str, tmp_path: Path) -> None:
    (tmp_path / template).write_text("mine")
    done = mandamus("init", template, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert (tmp_path / template).read_text() == "mine"


def test_a_dangling_link_is_a_file_that_is_there(template: str, tmp_path: Path) -> None:
    (tmp_path / template).mkdir()
    (tmp_path / template / "agent.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    assert mandamus("init", template, cwd=tmp_path).returncode == 2
    assert not (tmp_path / "elsewhere.yaml").exists()


def test_an_unknown_template_is_told_its_neighbour(tmp_path: Path) -> None:
    done = mandamus("init", "payut", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean payout" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../payout", "payout/policies", "", "."])
def test_a_template_is_a_name_and_no_path(name: str, tmp_path: Path) -> None:
    assert mandamus("init", name, "x", cwd=tmp_path).returncode == 2
    assert list(tmp_path.iterdir()) == []


# -- examples --------------------------------------------------------------------------------------------------------------------
def test_the_examples_are_the_templates(template: str) -> None:
    kept = {n: b for n, b in written(ROOT / "examples" / template).items() if "__pycache__" not in n and ".mandamus" not in n}
    assert kept == contents(template)


def test_the_treasury_example_runs() -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "treasury" / "payout_cycle.py")]
    done = subprocess.run(command, env=ENV, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert "suspended - 2 people are asked; 0 payments" in rows
    assert "completed - 1 payment" in rows
    assert rows[-1].startswith("signature of the evidence bundle: ")
