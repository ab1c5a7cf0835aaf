"""The demo: a tiny reasoning model of the kit's own on a real SGLang on the CPU. Nothing of the core imports it."""
