package devicemanager

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
)

// NewInDirectory returns a manager whose checkpoint is in a directory, restored from it. It listens on no socket.
func NewInDirectory(logger klog.Logger, directory string, numaNodes []int, store topologymanager.Store, active ActivePodsFunc) (*ManagerImpl, error) {
	m, err := newManagerImpl(logger, directory+"/kubelet.sock", nil, store)
	if err != nil {
		return nil, err
	}
	m.numaNodes = numaNodes
	m.activePods = active
	_ = m.readCheckpoint(logger) // a manager continues without a file that it cannot read
	return m, nil
}

// Age makes every plugin that is gone appear to have been gone for that much longer.
func (m *ManagerImpl) Age(passed time.Duration) {
	for _, info := range m.endpoints {
		if e, ok := info.e.(*endpointImpl); ok && !e.stopTime.IsZero() {
			e.stopTime = e.stopTime.Add(-passed)
		}
	}
}

// Save writes the checkpoint.
func (m *ManagerImpl) Save(logger klog.Logger) error { return m.writeCheckpoint(logger) }

// SweepAndSave writes the checkpoint if a sweep has removed a pod from it.
func (m *ManagerImpl) SweepAndSave(logger klog.Logger, sweep func()) error {
	before := m.podDevices.pods().Len()
	sweep()
	if m.podDevices.pods().Len() == before {
		return nil
	}
	return m.writeCheckpoint(logger)
}

// Found tells the manager whether all pods are known, and which containers (pod and name) were running when it
// started.
func (m *ManagerImpl) Found(ready config.SourcesReady, running [][]string) {
	m.sourcesReady, m.containerMap, m.containerRunningSet = ready, containermap.NewContainerMap(), sets.New[string]()
	for number, one := range running {
		id := strconv.Itoa(number)
		m.containerMap.Add(one[0], one[1], id)
		m.containerRunningSet.Insert(id)
	}
}

// AffinityFrom makes the manager get the affinity of each container from this store.
func (m *ManagerImpl) AffinityFrom(store topologymanager.Store) { m.topologyAffinityStore = store }
