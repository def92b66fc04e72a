"""Pages of stores of objects, of the blobs on them, and of releases (0915 to 0929).

The rule a newcomer would break: a store that does not answer is never an empty one; no page advises to begin anew.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

STORES: Pages = {
    "MDM-0915": ("No path of a store", "Steps of A-Z a-z 0-9 . _ - joined by /, none beginning with a dot, at most 900 characters."),
    "MDM-0916": (
        "No such store",
        "folder:///ABSOLUTE, folder://RELATIVE, s3://BUCKET/PREFIX?region=…, memory:. Credentials stand in the environment, never in it.",
    ),
    "MDM-0917": (
        "The store cannot be used",
        "Its folder is not ours to write, has no hard links, or somebody laid a link into it; or S3 refuses the credentials.",
    ),
    "MDM-0918": (
        "The store does not answer",
        "Nothing is lost that was acknowledged. A bucket that is gone and a disk that fails are no empty store: bring it back, then again.",
    ),
    "MDM-0919": (
        "An object is not kept",
        "The store took it and shows no such retention. Use a bucket that was made with Object Lock, at a service that has it.",
    ),
    "MDM-0920": (
        "A kept object is hidden",
        "A delete marker lies over it: somebody deleted it. The version behind is whole; remove the marker, and find out who set it.",
    ),
    "MDM-0921": (
        "The store deletes nothing",
        "Its objects are locked until their day. What must be able to go belongs into a store without lock.",
    ),
    "MDM-0922": (
        "A blob is another one than its name says",
        "Both digests are named. A replica that has the right one mends it; keep the wrong one if it may be evidence.",
    ),
    "MDM-0923": ("A blob is in no store", "Any file with this SHA-256 is the right one: put it back from a copy."),
    "MDM-0924": (
        "A segment of blobs is damaged",
        "What is packed in it cannot be read from this store. Another replica holds it; reading mends blob by blob.",
    ),
    "MDM-0925": ("A blob is being cleared", "A compaction has taken it and has not ended. Wait, or carry on the compaction that died."),
    "MDM-0926": ("No name of a blob", "64 hex digits: the SHA-256 of its bytes."),
    "MDM-0927": (
        "The store is being compacted",
        "One compaction at a time. If the process that holds it surely died, run it again and take over.",
    ),
    "MDM-0929": (
        "The provenance does not hold for these files",
        "A file was changed or is no part of the release, or another builder, commit or way of building is named. Do not install it.",
    ),
}
