"""Hypothesis profiles: `test` gives everybody the same few examples, `thorough` finds new ones (`make laws`)."""

from hypothesis import settings

# No deadlines: under coverage, and with another worker beside it, the time of one example says nothing.
settings.register_profile("test", deadline=None, derandomize=True, print_blob=True, max_examples=30)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=1000)
settings.load_profile("test")
