"""Finds the problems of a node: the checks, their findings and the report."""
