"""What a model driver answers, held against what its port promises: `answer(given)`, `fault(raised)`. Drivers are anybody's code.

The rule a newcomer would break: Structs do not check what they are built with. A count that is no whole number, or a category that does
not exist, would stand in a record that nobody could ever read again, and with it the whole run.
"""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from mandamus.core.canonical import INT_MAX
from mandamus.core.messages import Call, ModelAnswer, ModelFault
from mandamus.core.records import ModelFailed, Usage

CATEGORIES = frozenset(get_args(get_type_hints(ModelFailed)["category"])) - {"lost", "bad_output"}  # those two are the loop's own
STOPS = get_args(get_type_hints(ModelAnswer)["stop"])
WAIT_MS_MAX = 86_400_000  # nobody is made to wait longer than a day by what a provider says


def answer(given: Any) -> ModelAnswer:
    """The answer, without what is not to be believed: a wrong count is worse than none. Raises ModelFault when it is no answer."""
    if type(given) is not ModelAnswer or type(given.text) is not str or type(given.calls) is not tuple:
        raise ModelFault("fault", "the driver answered something else than a ModelAnswer of text and calls")
    for call in given.calls:
        if type(call) is not Call or type(call.name) is not str:
            raise ModelFault("fault", "a call without a name")
    usage, stop = given.usage, given.stop if given.stop in STOPS else "other"
    if stop is given.stop and (usage is None or _believed(usage)):
        return given
    return ModelAnswer(given.text, given.calls, stop, given.model, usage if usage is None or _believed(usage) else None)


def _believed(usage: Any) -> bool:
    if type(usage) is not Usage:
        return False
    for n in (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning):
        if type(n) is not int or not 0 <= n <= INT_MAX >> 20:  # many of them are added up
            return False
    return type(usage.estimated) is bool


def fault(raised: ModelFault) -> ModelFault:
    """The same fault, of a category that exists, with numbers that are some."""
    category = raised.category if type(raised.category) is str and raised.category in CATEGORIES else "fault"
    wait, status, partial = raised.retry_after_ms, raised.status, raised.partial
    return ModelFault(
        category,
        raised.what,
        retry_after_ms=min(wait, WAIT_MS_MAX) if type(wait) is int and wait >= 0 else None,
        status=status if type(status) is int and 100 <= status <= 599 else None,
        partial=partial if type(partial) is str else "",
    )
