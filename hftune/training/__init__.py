"""Training: the ``train`` section, the trainer, its batches, optimizers and checkpoints. Import what you need from its
modules; the package itself imports nothing, so that settings can be read without torch.
"""
