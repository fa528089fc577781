"""Tools around a training, which no training needs.

`diagnosis/` checks this machine, and compares distributions. `experiments/` trains many runs: suites, searches for
settings, and tuned settings. `views/` shows runs: curves, a page, a live view, videos. `export/` writes a policy for
other machines, and `pretrained/` has trained agents. If a tool needs another package, it imports the package when it
is used. Begin with `diagnosis/doctor.py`.
"""
