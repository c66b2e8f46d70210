"""The Python API: what the command line does, as functions that take and return objects.

``hftune/__init__.py`` has the public names. ``train`` and ``prepare`` are in ``training``, ``load`` and ``evaluate`` in
``run``, ``sweep`` and ``compare`` in ``study``. ``call`` turns keywords and rows into a recipe and shows the progress.
"""
