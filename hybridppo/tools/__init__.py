"""Tools around a training: what a machine can do, and what a run has come to.

A file for each: whether everything works here (`doctor.py`), settings by the name of an environment (`tuning.py`), a
run while it goes on (`watching.py`), runs drawn together (`plotting.py`), a run as a page (`report.py`), as a video
(`playing.py`), as a file for other machines (`exporting.py`). None is needed to train, and what a tool needs beyond
the library is imported when it is used. Begin with `doctor.py`.
"""
