"""The ``rex`` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line; the process exits with its code."""
    from rex_operator.cli.app import app

    app()
