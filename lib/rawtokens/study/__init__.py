"""What infidelity costs a draft model: EAGLE-3 heads trained on a capture, and on what others make of it."""
