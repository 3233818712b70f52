"""Tensor parallelism: several processes, each on a device of its own, compute one model together.

Start at `split`, which says what each of them holds; `parallel_target` is the first process's side, `follower` the others'.
"""
