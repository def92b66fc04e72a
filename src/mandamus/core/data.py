"""Data classes as a typed union: what a tool touches, and what must be known before it may.

One class per data class, so that a missing field is a type error; who does not check types gets the same refusal as Misuse.
`none("reason")` is a reasoned absence of a data subject.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from mandamus.errors import Misuse

Basis = Literal["consent", "contract", "legal_obligation", "vital_interests", "public_task", "legitimate_interests"]
Art9 = Literal[
    "explicit_consent", "employment_social_security", "vital_interests", "non_profit_body", "manifestly_public", "legal_claims",
    "substantial_public_interest", "health_or_social_care", "public_health", "archiving_research_statistics",
]  # fmt: skip
AnnexIII = Literal[
    "none", "biometric", "critical_infrastructure", "education", "employment", "essential_services", "law_enforcement", "migration",
    "justice", "democratic_processes",
]  # fmt: skip
Residency = Literal["eu", "eu_approved", "any"]
DataClassName = Literal["public", "business", "personal", "confidential", "special_category"]
ORDER: tuple[DataClassName, ...] = ("public", "business", "personal", "confidential", "special_category")


_ARTICLES = {
    "allowed_lawful_bases": "GDPR 6",
    "art9_basis": "GDPR 9(2)",
    "retention": "GDPR 5(1)(e)",
    "subject": "GDPR 5(1)(c), 17",
    "residency": "GDPR 44-49",
}


class _Lawful(msgspec.StructMeta):
    """What a type checker refuses is refused at construction too: a field that is missing, or of another type or word."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            made = super().__call__(*args, **kwargs)
            return msgspec.convert(msgspec.to_builtins(made), cls, strict=True)
        except (TypeError, ValueError, msgspec.ValidationError) as error:
            field = next((f for f in _ARTICLES if f in str(error)), "")
            raise Misuse(
                f"{cls.__name__}: {error}", code="MDM-0209", why=_ARTICLES.get(field, ""),
                fix=f"give {field}=… to {cls.__name__}(...)" if field else "see mandamus.data",
            ) from None  # fmt: skip


class SubjectRef(Struct, frozen=True, tag="arg", tag_field="kind", metaclass=_Lawful):
    """The data subject is named by this argument of the tool."""

    argument: str


class NoSubject(Struct, frozen=True, tag="none", tag_field="kind", metaclass=_Lawful):
    """There is no data subject, for this reason."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError('subject: none("why there is no data subject")')


def none(reason: str) -> NoSubject:
    return NoSubject(reason)


def subject(argument: str) -> SubjectRef:
    return SubjectRef(argument)


class _Class(Struct, frozen=True, kw_only=True, tag_field="class", metaclass=_Lawful):
    pass


class Public(_Class, frozen=True, kw_only=True, tag="public"):
    retention: str = ""
    residency: Residency = "any"


class Business(_Class, frozen=True, kw_only=True, tag="business"):
    retention: str
    subject: NoSubject | SubjectRef
    residency: Residency = "any"


class Personal(_Class, frozen=True, kw_only=True, tag="personal"):
    allowed_lawful_bases: tuple[Basis, ...]
    retention: str
    subject: SubjectRef
    residency: Residency = "eu"

    def __post_init__(self) -> None:
        _some_basis(self.allowed_lawful_bases)


class SpecialCategory(_Class, frozen=True, kw_only=True, tag="special_category"):
    """Residency is forced to the EU, for the model too; egress by allowlist only."""

    allowed_lawful_bases: tuple[Basis, ...]
    art9_basis: Art9
    retention: str
    subject: SubjectRef
    residency: Literal["eu"] = "eu"

    def __post_init__(self) -> None:
        _some_basis(self.allowed_lawful_bases)


class Confidential(_Class, frozen=True, kw_only=True, tag="confidential"):
    """With `allowed_lawful_bases` it says that personal data is embedded: then the rules of `Personal` apply too.

    `clearance` is part of the contract, and so of the pin. Nothing is withheld by it before data carries labels.
    """

    retention: str
    subject: NoSubject | SubjectRef
    allowed_lawful_bases: tuple[Basis, ...] = ()
    clearance: str = "confidential"
    residency: Residency = "any"


DataClass = Public | Business | Personal | SpecialCategory | Confidential


def _some_basis(bases: tuple[str, ...]) -> None:
    if not bases:
        raise ValueError("allowed_lawful_bases: name at least one (GDPR, Art. 6)")


def name_of(data: DataClass) -> DataClassName:
    return data.__struct_config__.tag  # type: ignore[return-value]


def bases_of(data: DataClass) -> tuple[Basis, ...]:
    return data.allowed_lawful_bases if isinstance(data, Personal | SpecialCategory | Confidential) else ()


class Retention(Struct, frozen=True, kw_only=True, metaclass=_Lawful):
    """A retention policy, in days: content <= hash <= decision. `allowed_bases` empty = any."""

    id: str
    content_days: int
    hash_days: int
    decision_days: int
    allowed_bases: tuple[Basis, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.content_days <= self.hash_days <= self.decision_days:
            raise ValueError(f"retention {self.id!r}: 0 < content_days <= hash_days <= decision_days")


BUILTIN_RETENTIONS: dict[str, Retention] = {
    r.id: r
    for r in (
        Retention(id="short", content_days=30, hash_days=183, decision_days=183),
        Retention(id="standard", content_days=183, hash_days=365, decision_days=365),
        Retention(id="books", content_days=3650, hash_days=3650, decision_days=3650),
    )
}
