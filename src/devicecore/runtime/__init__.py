"""What both managers are made of: runs, calls under way, turns, saved states, observers, and measuring.

Law: nothing here decides about devices or claims. What is true of one manager's locks, runs and saves is true of the
other's, because both have them from here.
"""
