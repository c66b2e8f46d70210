"""Settings: the base class of a section, the YAML reader, ``--set``, and checks that report all errors of a recipe at
once.

No module here imports a section or torch: functions that need the recipe's class have it as a parameter.
"""
