"""Data: readers, column mapping, splits, subsets, generators, and the settings of the ``data`` section.

Import what you need from its modules; the package itself imports nothing, so that settings are read without torch.
"""
