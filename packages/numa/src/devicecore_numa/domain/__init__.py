"""Decisions about CPUs and memory, as pure functions of values."""
