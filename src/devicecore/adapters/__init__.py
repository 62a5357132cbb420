"""Implementations of the ports, with one technology per module. No adapter knows the manager or any other adapter."""
