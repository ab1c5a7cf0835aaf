"""The engines that a target can be served with; a module an engine, pure functions."""
