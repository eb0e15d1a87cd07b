"""One clip on several GPUs: a process each (a rank), and every rank holds the whole transformer.

ranks.py: joining the job, and dealing the ranks out: guidance's two branches first, then each branch's tokens.
exchange.py: tokens against heads, so that a rank attends with its own heads over all tokens.
tokens.py, branches.py: what is put into one transformer for either, and taken out again.
sharing.py: who can share what, told from a model's description.
launching.py, leash.py: starting the ranks of one machine, and ending all of them when one ends.
"""
