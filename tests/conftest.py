"""Hypothesis profiles: `dev` looks for new examples on every run, `ci` gives everybody the same ones."""

import os

from hypothesis import settings

# No deadlines: under coverage, and with another worker beside it, the time of one example says nothing.
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
