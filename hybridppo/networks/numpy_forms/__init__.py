"""Networks in NumPy: the same arithmetic up to rounding, without torch.

Worker processes and all placements that sample on the CPU use them, because for small networks most of torch's time is
overhead. Begin with `form.py`, which describes an actor's NumPy form, and `actor.py`.
"""
