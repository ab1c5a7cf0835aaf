"""The parts that need torch and speculators: a program for their own environment; it imports no other of the kit."""
