"""Evidence: chains, signatures, bundles and their verification. Pure; core and this folder are the auditor's whole dependency."""

from mandamus.proof.chain import verify_chain
from mandamus.proof.report import Report
from mandamus.proof.trust import Trust
from mandamus.proof.verify import verify

__all__ = ["Report", "Trust", "verify", "verify_chain"]
