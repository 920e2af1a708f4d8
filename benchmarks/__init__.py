"""Benchmarks: each is ``python -m benchmarks.NAME [--quick]``; its last line is one JSON object."""
