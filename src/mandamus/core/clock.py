"""Calendar arithmetic on recorded instants. Nobody here asks what time it is; the shell says so and it is recorded.

An instant is microseconds since 1970-01-01T00:00:00Z (fits 2^53-1 until the year 2255).
"""

import functools
from typing import Annotated

from msgspec import Meta, Struct

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class LocalTime(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The clock as policy sees it: `date` is YYYY-MM-DD, `weekday` an English name in lower case."""

    date: str
    hour: int
    minute: int
    tz: str
    weekday: str


class Clock(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What the shell read: the instant, and the offset in minutes of the zone `tz` at that instant."""

    now: Annotated[int, Meta(ge=-(2**53) + 1, le=2**53 - 1)]
    offset: Annotated[int, Meta(ge=-1440, le=1440)]
    tz: str

    def local(self) -> LocalTime:
        return local(self.now, self.offset, self.tz)


def local(now: int, offset: int, tz: str) -> LocalTime:
    return _local(now // 60_000_000 + offset, tz)


@functools.lru_cache(maxsize=64)
def _local(minutes: int, tz: str) -> LocalTime:
    days, minute = divmod(minutes, 1440)
    return LocalTime(_date(days), minute // 60, minute % 60, tz, WEEKDAYS[(days + 3) % 7])


def first_day(year: int, month: int) -> int:
    """The day number of the first of a month. Source: as in `_date`."""
    year, shifted = (year, month - 3) if month > 2 else (year - 1, month + 9)
    era, yoe = divmod(year, 400)
    return era * 146_097 + yoe * 365 + yoe // 4 - yoe // 100 + (153 * shifted + 2) // 5 - 719_468


def rfc3339(now: int) -> str:
    """RFC 3339 in UTC with six digits, e.g. 2026-11-21T22:36:12.000000Z."""
    return f"{_second(now // 1_000_000)}.{now % 1_000_000:06}Z"


@functools.lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """The text up to the second: many records are written within one."""
    days, within = divmod(seconds, 86_400)
    return f"{_date(days)}T{within // 3600:02}:{within // 60 % 60:02}:{within % 60:02}"


@functools.lru_cache(maxsize=64)
def _date(days: int) -> str:
    """Civil date of a day number. Source: Howard Hinnant, chrono-compatible low-level date algorithms (public domain)."""
    era, doe = divmod(days + 719_468, 146_097)
    yoe = (doe - doe // 1460 + doe // 36_524 - doe // 146_096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    month = (5 * doy + 2) // 153
    day = doy - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return f"{yoe + era * 400 + (month <= 2):04}-{month:02}-{day:02}"
