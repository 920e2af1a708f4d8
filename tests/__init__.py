"""REX's tests: one folder per area, one behaviour per file."""
