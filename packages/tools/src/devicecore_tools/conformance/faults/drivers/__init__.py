"""The faulty drivers, with one module for each group of checks.

Law: each is a subclass of the good driver.
"""
