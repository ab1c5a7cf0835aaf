"""Audits of what was captured: replay on the server, and what re-tokenising or re-rendering would change."""
