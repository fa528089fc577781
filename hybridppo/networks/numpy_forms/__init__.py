"""Networks in NumPy: the same arithmetic to rounding, without torch.

Worker processes sample with them, and so does every placement that samples on the CPU; for small networks most of
torch's time is overhead. Begin with `form.py`, which says what NumPy can stand in for, and `actor.py`.
"""
