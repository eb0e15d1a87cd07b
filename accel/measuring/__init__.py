"""Measuring readouts, with torch: run.py is the door, and `accel.readouts` holds what comes of it.

calls.py records a model's calls and blocks.py its blocks, trials.py builds them for a backend, timing.py runs them in
turns, executed.py tells which kernels ran, peak.py measures what the machine could do at most, micro.py makes the rows,
clips.py compares whole clips, and quality.py says how alike they are.
"""
