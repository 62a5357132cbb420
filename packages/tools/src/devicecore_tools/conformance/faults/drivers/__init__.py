"""The faulty drivers, one module per group of checks.

Law: each is a subclass of the good driver.
"""
