"""The device manager as immutable values and pure functions: no I/O, no clock, no threads, no logging.

Read `model` for the values, `inventory` for what plugins report, `ledger` for which container holds which device,
`selection` for how devices are chosen, and `node_state`, which combines inventory and ledger.
"""
