"""Examples of training scripts; each runs by itself, as ``python examples/NAME/train.py``."""
