"""Capture what a reasoning model really said, as raw token ids."""

__version__ = "0.1.0"
