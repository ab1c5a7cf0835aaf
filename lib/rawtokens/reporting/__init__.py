"""What people look at: statistics, figures with their takeaways, decoded rows, and the pages that hold them."""
