"""How a model fits into the memory there is: needs.py reckons the bytes, choosing.py decides what is moved, freed or
tiled, moving.py does it to a pipeline. Only moving.py imports torch.
"""
