"""Readouts: how fast and how right every backend is on this machine, for the calls a model really makes.

results.py says what was measured and who won, store.py keeps it per machine and versions, ranking.py and deciding.py
hand it to `make_plan`; none of these imports torch. calls.py records a model's calls, trials.py builds them for a
backend, timing.py runs them in turns, peak.py measures what the machine could do at most, micro.py makes the rows,
clips.py compares whole clips.
"""
