"""What draft heads compute on a processor, compiled like the target's kernels; a head computes on one thread."""
