//go:build kubernetes1.37

package main

import (
	"context"
	"io"
	"time"

	cadvisor "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// Functions whose signatures changed in Kubernetes 1.37.

func fixedAffinity(logger klog.Logger, hint *topologymanager.TopologyHint) topologymanager.Store {
	return topologymanager.NewFakeManagerWithHint(logger, hint)
}

func allocateContainer(ctx context.Context, m *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) error {
	return m.Allocate(ctx, pod, container, lifecycle.AddOperation)
}

func containerHints(logger klog.Logger, m *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) hints {
	return m.GetTopologyHints(logger, pod, container, lifecycle.AddOperation)
}

func providerHints(logger klog.Logger, provider topologymanager.HintProvider, pod *v1.Pod, container *v1.Container) hints {
	return provider.GetTopologyHints(logger, pod, container, lifecycle.AddOperation)
}

func podHints(logger klog.Logger, provider topologymanager.HintProvider, pod *v1.Pod) hints {
	return provider.GetPodTopologyHints(logger, pod, lifecycle.AddOperation)
}

func (s *fixedStore) GetAffinity(klog.Logger, string, string) topologymanager.TopologyHint {
	return s.hint
}

func disconnectPlugin(logger klog.Logger, m *devicemanager.ManagerImpl, resource, socket string) {
	m.PluginDisconnected(logger, resource, socket)
}

func capacityOf(logger klog.Logger, m *devicemanager.ManagerImpl) (v1.ResourceList, v1.ResourceList, []string) {
	return m.GetCapacity(logger)
}

func sweep(logger klog.Logger, m *devicemanager.ManagerImpl) { m.UpdateAllocatedDevices(logger) }

func updateDeviceStatus(logger klog.Logger, m *devicemanager.ManagerImpl, pod *v1.Pod) {
	m.UpdateAllocatedResourcesStatus(logger, pod, &pod.Status)
}

func admitTo(ctx context.Context, scope topologymanager.Scope, pod *v1.Pod) lifecycle.PodAdmitResult {
	return scope.Admit(ctx, pod, lifecycle.AddOperation)
}

func addProvider(logger klog.Logger, scope topologymanager.Scope, provider topologymanager.HintProvider) {
	scope.AddHintProvider(logger, provider)
}

func affinityOf(logger klog.Logger, scope topologymanager.Scope, podUID, container string) topologymanager.TopologyHint {
	return scope.GetAffinity(logger, podUID, container)
}

func (p fixedHints) GetTopologyHints(_ klog.Logger, _ *v1.Pod, container *v1.Container, _ lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return p[container.Name]
}

func (p fixedHints) GetPodTopologyHints(klog.Logger, *v1.Pod, lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return p[""]
}

func (fixedHints) AllocatePod(klog.Logger, *v1.Pod, lifecycle.Operation) error { return nil }

func (fixedHints) Allocate(context.Context, *v1.Pod, *v1.Container, lifecycle.Operation) error {
	return nil
}

func registerDriver(ctx context.Context, m *dra.Manager, name, endpoint, service string, timeout *time.Duration) error {
	return m.GetWatcherHandler().RegisterPlugin(ctx, name, endpoint, []string{service}, timeout)
}

func deregisterDriver(ctx context.Context, m *dra.Manager, name, endpoint string) {
	m.GetWatcherHandler().DeRegisterPlugin(ctx, name, endpoint)
}

func updateStatus(ctx context.Context, m *dra.Manager, pod *v1.Pod, status *v1.PodStatus) {
	m.UpdateAllocatedResourcesStatus(klog.FromContext(ctx), pod, status)
}

func dynamicResources(ctx context.Context, m *dra.Manager, pod *v1.Pod, container *v1.Container) []*podresources.DynamicResource {
	return cm.WithClaims(m).GetDynamicResources(klog.FromContext(ctx), pod, container)
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

func newTopologyManager(logger klog.Logger, asked optionsQuestion) (topologymanager.Manager, error) {
	var nodes []cadvisor.Node
	for id, distances := range asked.NUMANodes {
		nodes = append(nodes, cadvisor.Node{Id: id, Distances: distances})
	}
	return topologymanager.NewManager(logger, nodes, asked.Policy, asked.Scope, asked.Options)
}
