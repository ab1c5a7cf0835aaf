"""What verification looks at: columns of ids, where their segments fall, and what can be wrong with them."""
