"""Keeps positions and prepared branches: how far each channel is, and who may move it."""
