package devicemanager

import (
	"time"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
)

// NewInDirectory returns a manager whose checkpoint is in a directory, restored from it. It listens on no socket.
func NewInDirectory(logger klog.Logger, directory string, numaNodes []int, store topologymanager.Store, active ActivePodsFunc) (*ManagerImpl, error) {
	m, err := newManagerImpl(logger, directory+"/kubelet.sock", nil, store)
	if err != nil {
		return nil, err
	}
	m.numaNodes = numaNodes
	m.activePods = active
	return m, m.readCheckpoint(logger)
}

// Age makes every plugin that is gone have been gone for that much longer.
func (m *ManagerImpl) Age(passed time.Duration) {
	for _, info := range m.endpoints {
		if e, ok := info.e.(*endpointImpl); ok && !e.stopTime.IsZero() {
			e.stopTime = e.stopTime.Add(-passed)
		}
	}
}

// Save writes the checkpoint.
func (m *ManagerImpl) Save(logger klog.Logger) error { return m.writeCheckpoint(logger) }

// AffinityFrom makes the manager ask this store for the affinity of each container.
func (m *ManagerImpl) AffinityFrom(store topologymanager.Store) { m.topologyAffinityStore = store }
