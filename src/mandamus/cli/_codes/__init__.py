"""The pages of the error codes, a file for each whose fault it is; `cli/codes.py` puts them together."""

from __future__ import annotations

Pages = dict[str, tuple[str, str]]  # code -> (title, what it means and what to do)
