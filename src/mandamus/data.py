"""Data classes for users: `from mandamus.data import Confidential, none`."""

from mandamus.core.data import Business, Confidential, Personal, Public, Retention, SpecialCategory, none, subject

__all__ = ["Business", "Confidential", "Personal", "Public", "Retention", "SpecialCategory", "none", "subject"]
