"""What the managers need from outside, one protocol in each module: plugins, a store, a sink, pods, and more.

Law: a manager calls the world outside only through these protocols. A port raises only the errors that its docstring
names.
"""
