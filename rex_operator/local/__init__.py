"""Runs a RexJob on this machine without Kubernetes: ``start.prepare`` checks, ``run.LocalRun`` runs."""
