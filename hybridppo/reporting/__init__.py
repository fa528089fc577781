"""What a training shows: progress, metrics for trackers, advice.

None of it is ever a reason for a training to stop. Begin with `progress.py`.
"""
