"""The device manager as frozen values and pure functions: no I/O, no clock, no threads, no logging.

Read `model` for the nouns, `inventory` for what plugins say, `ledger` for who holds what, `selection` for who gets
which device, and `node`, where they meet.
"""
