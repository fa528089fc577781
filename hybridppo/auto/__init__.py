"""The placement that is measured: time a user's own work, predict every placement, take the fastest.

`calibration.py` measures, `prediction.py` predicts, `decision.py` decides, `auto.py` puts them before a training, and
`comparison.py` shows them side by side. This room stands above agents and runners, which it measures. Begin with
`auto.py`.
"""
