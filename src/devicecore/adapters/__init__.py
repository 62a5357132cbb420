"""Implementations of the ports, one technology a module. None knows the manager or another adapter."""
