"""Conversations of several turns: what the next turn's prompt is, and where and why a conversation ends."""
