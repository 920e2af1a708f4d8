"""Readers of published measurements, from a folder that the user names.

The project ships none of these data; each module tells where its source is published and what its columns mean. These
readers are the only part of the simulator that touches files.
"""

from rex_operator.simulation.published.reading import BadData
from rex_operator.simulation.published.table import Row, Table

__all__ = ["BadData", "Row", "Table"]
