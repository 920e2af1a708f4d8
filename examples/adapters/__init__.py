"""Trainers of other libraries on REX; each script is started by hand or by torchrun."""
