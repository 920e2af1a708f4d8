"""A real Kubernetes cluster for the tests, on any machine.

Emulating the API server hides just those bugs that an operator has: watch order, defaulting, garbage collection, pods
that die. So the tests run against real Kubernetes, from one of three providers (see ``providers``). ``python -m
tests.cluster up`` gives a developer the same cluster by hand.
"""
