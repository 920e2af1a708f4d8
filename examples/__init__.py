"""What REX training scripts look like."""
