"""Committers make the units of channels visible, as a pipeline's consistency says."""
