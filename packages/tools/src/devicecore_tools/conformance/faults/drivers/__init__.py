"""The faulty drivers, one module per group of checks.

Law: each driver is a subclass of the good driver.
"""
