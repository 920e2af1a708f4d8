"""REX behind interfaces that people already use; each module is imported on demand and needs only its own framework.

Import an adapter before ``rex.init()``: under torchrun REX then hides the launcher's variables from the framework,
which would otherwise form a process group of its own.
"""
