"""Zstandard, as one pair of functions: `Zstd().pack(data)`, `Zstd().unpack(raw, limit)`. Extra `mandamus[s3]` before Python 3.14.

The rule a newcomer would break: the size that a frame names is a claim of whoever wrote it. Unpacking stops at the limit, whatever it says.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 10  # of cold data: written once, in the background


class Zstd:
    """Implements `runtime.content.segments.Codec`."""

    name = "zstd"

    def pack(self, data: bytes) -> bytes:
        return zstd.compress(data, LEVEL)

    def unpack(self, raw: bytes, limit: int) -> bytes:
        """Raises ValueError for what is no whole frame, or is larger than the limit."""
        reader = zstd.ZstdDecompressor()
        try:
            data = reader.decompress(raw, limit + 1)
        except zstd.ZstdError as error:
            raise ValueError(f"no zstd frame: {error}") from None
        if len(data) > limit or not reader.eof or reader.unused_data:
            raise ValueError(f"not one whole frame of at most {limit} bytes")
        return data
