"""Implementations of the ports, with one technology per module. None knows the manager or another adapter."""
