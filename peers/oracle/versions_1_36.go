//go:build !kubernetes1.37

package main

import (
	"context"
	"io"
	"time"

	cadvisor "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// Functions whose signatures changed in Kubernetes 1.37.

func fixedAffinity(_ klog.Logger, hint *topologymanager.TopologyHint) topologymanager.Store {
	return topologymanager.NewFakeManagerWithHint(hint)
}

func allocateContainer(_ context.Context, m *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) error {
	return m.Allocate(pod, container)
}

func containerHints(_ klog.Logger, m *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) hints {
	return m.GetTopologyHints(pod, container)
}

func providerHints(_ klog.Logger, provider topologymanager.HintProvider, pod *v1.Pod, container *v1.Container) hints {
	return provider.GetTopologyHints(pod, container)
}

func podHints(_ klog.Logger, provider topologymanager.HintProvider, pod *v1.Pod) hints {
	return provider.GetPodTopologyHints(pod)
}

func (s *fixedStore) GetAffinity(string, string) topologymanager.TopologyHint { return s.hint }

func disconnectPlugin(logger klog.Logger, m *devicemanager.ManagerImpl, resource, _ string) {
	m.PluginDisconnected(logger, resource)
}

func capacityOf(_ klog.Logger, m *devicemanager.ManagerImpl) (v1.ResourceList, v1.ResourceList, []string) {
	return m.GetCapacity()
}

func sweep(_ klog.Logger, m *devicemanager.ManagerImpl) { m.UpdateAllocatedDevices() }

func updateDeviceStatus(_ klog.Logger, m *devicemanager.ManagerImpl, pod *v1.Pod) {
	m.UpdateAllocatedResourcesStatus(pod, &pod.Status)
}

func admitTo(ctx context.Context, scope topologymanager.Scope, pod *v1.Pod) lifecycle.PodAdmitResult {
	return scope.Admit(ctx, pod)
}

func addProvider(_ klog.Logger, scope topologymanager.Scope, provider topologymanager.HintProvider) {
	scope.AddHintProvider(provider)
}

func affinityOf(_ klog.Logger, scope topologymanager.Scope, podUID, container string) topologymanager.TopologyHint {
	return scope.GetAffinity(podUID, container)
}

func (p fixedHints) GetTopologyHints(_ *v1.Pod, container *v1.Container) map[string][]topologymanager.TopologyHint {
	return p[container.Name]
}

func (p fixedHints) GetPodTopologyHints(*v1.Pod) map[string][]topologymanager.TopologyHint {
	return p[""]
}

func (fixedHints) AllocatePod(*v1.Pod) error { return nil }

func (fixedHints) Allocate(*v1.Pod, *v1.Container) error { return nil }

func registerDriver(_ context.Context, m *dra.Manager, name, endpoint, service string, timeout *time.Duration) error {
	return m.GetWatcherHandler().RegisterPlugin(name, endpoint, []string{service}, timeout)
}

func deregisterDriver(_ context.Context, m *dra.Manager, name, endpoint string) {
	m.GetWatcherHandler().DeRegisterPlugin(name, endpoint)
}

func updateStatus(_ context.Context, m *dra.Manager, pod *v1.Pod, status *v1.PodStatus) {
	m.UpdateAllocatedResourcesStatus(pod, status)
}

func dynamicResources(_ context.Context, m *dra.Manager, pod *v1.Pod, container *v1.Container) []*podresources.DynamicResource {
	return cm.WithClaims(m).GetDynamicResources(pod, container)
}

// A healthStream passes the reports to the manager.
type healthStream struct {
	drahealth.DRAResourceHealth_NodeWatchResourcesClient
	*healthReports
}

func watchHealth(ctx context.Context, m *dra.Manager, driver string, reports *healthReports) error {
	return m.HandleWatchResourcesStream(ctx, healthStream{healthReports: reports}, driver)
}

func (s healthStream) Recv() (*drahealth.NodeWatchResourcesResponse, error) {
	reports := s.next()
	if reports == nil {
		return nil, io.EOF
	}
	answer := &drahealth.NodeWatchResourcesResponse{}
	for _, one := range reports {
		answer.Devices = append(answer.Devices, &drahealth.DeviceHealth{
			Device:                    &drahealth.DeviceIdentifier{PoolName: one.Pool, DeviceName: one.Device},
			Health:                    drahealth.HealthStatus(drahealth.HealthStatus_value[one.Health]),
			Message:                   one.Message,
			HealthCheckTimeoutSeconds: one.Timeout,
			LastUpdatedTime:           one.LastUpdated,
		})
	}
	return answer, nil
}

type machine cadvisor.MachineInfo

func (m *machine) info() *cadvisor.MachineInfo { return (*cadvisor.MachineInfo)(m) }

func newTopologyManager(_ klog.Logger, asked optionsQuestion) (topologymanager.Manager, error) {
	var nodes []cadvisor.Node
	for id, distances := range asked.NUMANodes {
		nodes = append(nodes, cadvisor.Node{Id: id, Distances: distances})
	}
	return topologymanager.NewManager(nodes, asked.Policy, asked.Scope, asked.Options)
}
