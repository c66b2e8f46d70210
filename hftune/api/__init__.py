"""The Python API: what the command line does, as functions that take and return objects.

``hftune/__init__.py`` gives its public names: ``train``, ``prepare`` and ``load`` are in ``training`` and ``run``,
``sweep`` and ``compare`` in ``study``. ``request`` turns keywords and rows into a recipe, ``show`` shows the progress.
"""
