"""The parts that both managers share: runs, calls in progress, turns, saved states, observers, and measuring.

Law: nothing in this package makes decisions about devices or claims. Both managers give the same guarantees about
locks, runs and saves, because these are implemented here.
"""
