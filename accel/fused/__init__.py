"""What stands around the products of a block, in kernels of our own: an alternative to compiling, for FP8 linears.

A block of a video transformer reads and writes its tokens some twenty times outside of its products. Here each of
these passes happens once and hands over what the next product takes: a norm with its modulation and the residual sum
before it gives FP8 rows, so do a gelu and an attention's output; a query's or key's norm and rotation gives FP8 heads.

- plain.py    the same in plain torch: for the CPU, and what the kernels are compared with
- kernels.py  in Triton, for a GPU, and passes.py, which launches them
- wan.py      the block of Wan 2.1 and 2.2 that calls either
"""
