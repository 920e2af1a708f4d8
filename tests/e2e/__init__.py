"""Whole-cluster tests: real kubelets, real pods, the images built from the Dockerfile."""
