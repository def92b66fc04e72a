"""Facts, the fold, the rules. Pure: no clock, no disk, no randomness, no network."""
