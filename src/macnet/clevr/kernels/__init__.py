"""The `fast` renderer as Triton kernels for CUDA; `launch.py` says which run, and in which order.

Formulas and their constants are those of `shapes.py`, `light.py` and `surface.py` one level up,
which are what these kernels are tested against. Nothing here is imported before it is asked for:
an installation for CPUs has no Triton.
"""
