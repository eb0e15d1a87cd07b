"""The starter model: a procedural world, its captions and judge, the training and the weights.

Importing this package imports nothing else; its modules need torch.
"""
