"""What the managers need from the outside world, one protocol per module: plugins, a store, a sink, pods, and more.

Law: a manager reaches the outside world only through these protocols. A port raises only the errors that its docstring
names.
"""
