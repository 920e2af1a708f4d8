"""Input that cannot run, told before anything was started."""

from __future__ import annotations


class BadInput(Exception):
    """What is wrong, where, and what to do; nothing was started or changed."""
