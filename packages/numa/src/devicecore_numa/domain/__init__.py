"""Pure decisions about CPUs and memory: values in, values out."""
