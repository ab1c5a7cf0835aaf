"""The stages of a run: which are current, with which parameters their notebooks run, and the kernels that run them."""
