"""The report of a run: one HTML page from its record."""

from rex_operator.report.page import write_report

__all__ = ["write_report"]
