"""Tools around a training, which no training needs: a module for each command.

If a tool needs another package, it imports the package when it is used. `pretrained/` has the files of trained agents.
"""
