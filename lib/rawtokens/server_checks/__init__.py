"""Is a server faithful? Its facts, its answers, its chat endpoint, and the table of what was seen."""
