"""The protocols of what the managers need: plugins, a store, a sink, pods, and more."""
