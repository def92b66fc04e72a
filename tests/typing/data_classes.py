# What a data class may not leave out. Each line that says `refused` stands beside its twin, which passes.
from mandamus.data import Business, Confidential, Personal, Public, SpecialCategory, none, subject

Business(subject=none("a price list"))  # refused: retention is missing
Business(subject=none("a price list"), retention="standard")

Business(retention="standard")  # refused: subject is missing
Business(retention="standard", subject=subject("customer"))

Confidential(retention="books")  # refused: subject is missing
Confidential(retention="books", subject=none("own account"))

Personal(retention="standard", subject=subject("customer"))  # refused: allowed_lawful_bases is missing
Personal(retention="standard", subject=subject("customer"), allowed_lawful_bases=("contract",))

Personal(allowed_lawful_bases=("contract",), subject=subject("customer"))  # refused: retention is missing
Personal(allowed_lawful_bases=("contract",), subject=subject("customer"), retention="short")

Personal(retention="standard", allowed_lawful_bases=("contract",))  # refused: subject is missing
Personal(retention="standard", allowed_lawful_bases=("consent",), subject=subject("customer"))

Personal(retention="standard", allowed_lawful_bases=("contract",), subject=none("nobody"))  # refused: a person is somebody
Personal(retention="standard", allowed_lawful_bases=("contract", "consent"), subject=subject("customer"))

Personal(retention="standard", allowed_lawful_bases=("convenience",), subject=subject("customer"))  # refused: no basis of Art. 6
Personal(retention="standard", allowed_lawful_bases=("legal_obligation",), subject=subject("customer"))

SpecialCategory(retention="short", allowed_lawful_bases=("consent",), subject=subject("patient"))  # refused: art9_basis is missing
SpecialCategory(retention="short", allowed_lawful_bases=("consent",), subject=subject("patient"), art9_basis="explicit_consent")

SpecialCategory(retention="short", allowed_lawful_bases=("consent",), subject=subject("patient"), art9_basis="consent")  # refused: of Art. 6
SpecialCategory(retention="short", allowed_lawful_bases=("consent",), subject=subject("patient"), art9_basis="vital_interests")

WHO = subject("patient")
SpecialCategory(retention="short", allowed_lawful_bases=("consent",), subject=WHO, art9_basis="explicit_consent", residency="any")  # refused: EU
SpecialCategory(retention="short", allowed_lawful_bases=("consent",), subject=WHO, art9_basis="explicit_consent", residency="eu")

HEALTH = SpecialCategory(retention="short", allowed_lawful_bases=("consent",), subject=subject("patient"), art9_basis="explicit_consent")
HEALTH.residency = "any"  # refused: it is frozen
where: str = HEALTH.residency

Public(residency="moon")  # refused: no residency
Public(residency="eu")
