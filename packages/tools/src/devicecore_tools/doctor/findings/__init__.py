"""What is wrong with a node: the checks, what they find, and the report."""
