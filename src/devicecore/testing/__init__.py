"""What tests of devicecore, and of code around it, are made of.

`contracts` has a suite for every port: run yours over your own adapter. `strategies` has Hypothesis strategies for all
nouns of the domain; it is the only module here that needs Hypothesis, which comes with the extra `testing`.
"""
