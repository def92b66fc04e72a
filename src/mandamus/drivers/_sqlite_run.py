"""Runs the jobs of one transaction, each for itself: `run_all(db, cursor, jobs, path)` sets the value or the error of every job.

The rule a newcomer would break: a job is run again when another one of its group failed half way. It may do nothing but read and write
through the cursor.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from mandamus.drivers import _sqlite_file as file
from mandamus.drivers._sqlite_group import Job


def run_all(db: apsw.Connection, cursor: apsw.Cursor, jobs: list[Job], path: Path) -> bool:
    """False when nothing is left to commit. Raises apsw.Error: a fault of the file, which concerns all.

    Whoever fails has written nothing, for all checks stand before the first write. Else all are run once more, each in a savepoint; to
    have one around every job from the start would copy every page that it touches.
    """
    some = False
    for job in jobs:
        before = db.total_changes()
        _run(job, path)
        if job.error is None:
            some = True
        elif len(jobs) > 1 and db.total_changes() != before:
            return _run_apart(cursor, jobs, path)
    return some


def _run_apart(cursor: apsw.Cursor, jobs: list[Job], path: Path) -> bool:
    """From the beginning, so that what one of them has half written is undone alone."""
    cursor.execute("ROLLBACK")
    cursor.execute("BEGIN IMMEDIATE")
    for job in jobs:
        cursor.execute("SAVEPOINT job")
        _run(job, path)
        if job.error is not None:
            cursor.execute("ROLLBACK TO job")
        cursor.execute("RELEASE job")
    return any(job.error is None for job in jobs)


def _run(job: Job, path: Path) -> None:
    """Its value or its error. Raises what concerns all: a fault of the file."""
    job.value, job.error = None, None
    try:
        job.value = job.work()
    except apsw.ConstraintError as error:
        job.error = file.translate(error, path)
    except apsw.Error:
        raise
    except Exception as error:
        job.error = error
