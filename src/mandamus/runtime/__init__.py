"""The shell: the loop, one performer per effect, mail, recovery, replay. All I/O of a run goes through here."""
