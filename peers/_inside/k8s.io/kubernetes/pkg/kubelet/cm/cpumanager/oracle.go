package cpumanager

import (
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
)

// StartAlone does what Start does, without the loop that writes cgroups.
func StartAlone(logger klog.Logger, given Manager, active ActivePodsFunc) error {
	m := given.(*manager)
	m.activePods = active
	m.containerMap = containermap.NewContainerMap()
	restored, err := state.NewCheckpointState(logger, m.stateFileDirectory, cpuManagerStateFileName, m.policy.Name(), m.containerMap)
	if err != nil {
		return err
	}
	m.state = restored
	if err := m.policy.Start(logger, m.state); err != nil {
		return err
	}
	m.allocatableCPUs = m.policy.GetAllocatableCPUs(m.state)
	return nil
}

// Sweep releases everything held by pods that are no longer active.
func Sweep(logger klog.Logger, given Manager) { given.(*manager).removeStaleState(logger) }
