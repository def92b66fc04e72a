"""`python tests/law.py`: each clause of the law with its tests: proven, or what is not built yet. Exit 1 when a proof fails."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TITLES = {
    "1": "no effect without a durable intent",
    "2": "only policy starts, people never bypass it",
    "3": "everything else only proposes",
    "4": "default deny, a fault is no verdict",
    "5": "exactly once, or the run says it does not know",
    "6": "the log is the truth",
    "7": "same log in, same run out",
    "8": "no secret in the log, personal data can be forgotten",
    "9": "a bundle proves itself offline",
    "10": "what is illegal cannot be made or started",
}


class Clauses:
    """Collects, per clause, what became of each of its tests."""

    def __init__(self) -> None:
        self.of: dict[str, list[str]] = {}
        self.words: dict[str, str] = {}
        self.found: dict[str, list[tuple[str, str, str]]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            self.of[item.nodeid] = [mark.args[0] for mark in item.iter_markers("law")]
            self.words[item.nodeid] = " ".join((item.function.__doc__ or item.name).split())

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        excuse = getattr(report, "wasxfail", "")
        state = "not built" if excuse and report.skipped else "proven" if report.passed else report.outcome
        for clause in self.of.get(report.nodeid, ()):
            self.found[clause].append((state, self.words[report.nodeid], excuse))

    def tell(self) -> bool:
        good = True
        for clause, title in TITLES.items():
            found = self.found[clause]
            states = {state for state, _, _ in found}
            sound = bool(found) and states <= {"proven", "not built"} and "proven" in states
            good = good and sound
            verdict = "proven" if states == {"proven"} else "proven in part" if sound else "NOT PROVEN"
            print(f"{clause:>2}. {title}: {verdict}")
            for state, words, excuse in dict.fromkeys(found):
                print(f"      {state:10} {words}" + (f"\n                 missing: {excuse}" if excuse else ""))
        return good


def main() -> int:
    clauses = Clauses()
    code = pytest.main(
        ["-q", "-p", "no:cacheprovider", "--no-header", "--no-summary", "-m", "law", str(ROOT / "tests" / "spec")], plugins=[clauses]
    )
    print()
    good = clauses.tell()
    return 0 if good and code == 0 else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
