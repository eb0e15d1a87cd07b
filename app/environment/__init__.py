"""What the launcher needs to prepare an environment; standard library only, imported before anything is installed.

machine.py    reads which system, processor and GPUs are here
builds.json   the table: which torch build and which kernel package fit which machine
builds.py     picks a row, and says why it passed over the others
versions.py   versions and requirements, as far as pyproject.toml uses them
packages.py   what an interpreter has installed, and what it lacks
venv.py       .venv itself: make, repair, stamp, lock
pip.py        one face for pip, so that tests can put another in its place
install.py    the three steps: torch, the rest, the kernel package; then proof
handover.py   run a child to its end and give back its exit code
"""
