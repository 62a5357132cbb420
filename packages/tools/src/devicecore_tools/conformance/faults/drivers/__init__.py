"""The drivers with faults, one module for each group of checks.

Law: each is a subclass of the good driver.
"""
