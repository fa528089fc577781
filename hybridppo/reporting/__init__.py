"""What a training tells people: progress, pictures, warnings.

None of it is ever a reason for a training to stop. Begin with `progress.py`.
"""
