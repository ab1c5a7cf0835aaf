"""What a capture run is made of: requests, servers, known keys, repairs, progress, and what is tried again."""
