"""Readouts: how fast and how right every backend was on this machine, for the calls a model really makes.

results.py says what was measured and who won, store.py keeps it per machine and versions, ranking.py and deciding.py
hand it to `make_plan`, words.py and chart.py show it. None of these imports torch, and none measures: `accel.measuring`
does, by itself with `python -m accel.readouts`.
"""
