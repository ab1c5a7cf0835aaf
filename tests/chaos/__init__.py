"""Kills, full disks and wire faults against the real client and the real server; `python tests/chaos` runs all."""
