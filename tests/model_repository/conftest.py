"""Settings of the property tests: the same examples in every run, and nothing written beside the sources."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")
