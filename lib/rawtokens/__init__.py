"""Capture what a reasoning model really said, as raw token ids."""

import os
import warnings

__version__ = "0.1.0"

# Two lines that would stand on top of every report: transformers misses torch, which this environment does without
# on purpose, and tqdm misses ipywidgets, whose progress bars a rendered page can't show.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
warnings.filterwarnings("ignore", message="IProgress not found")
