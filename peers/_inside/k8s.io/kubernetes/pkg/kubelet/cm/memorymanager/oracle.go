package memorymanager

import "k8s.io/klog/v2"

// Sweep releases everything held by pods that are no longer active.
func Sweep(logger klog.Logger, given Manager) { given.(*manager).removeStaleState(logger) }
