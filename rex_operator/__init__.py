"""REX: an operator for elastic PyTorch training on mixed GPU pools."""

__version__ = "0.1.0"
