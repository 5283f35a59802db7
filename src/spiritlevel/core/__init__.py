"""Foundations: tensors, factor views, blocks, results. Nothing here knows a model."""
