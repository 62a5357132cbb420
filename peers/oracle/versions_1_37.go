//go:build kubernetes1.37

package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// What had another signature before Kubernetes 1.37.

func fixedAffinity(logger klog.Logger, hint *topologymanager.TopologyHint) topologymanager.Store {
	return topologymanager.NewFakeManagerWithHint(logger, hint)
}

func allocateContainer(ctx context.Context, m *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) error {
	return m.Allocate(ctx, pod, container, lifecycle.AddOperation)
}

func containerHints(logger klog.Logger, m *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) hints {
	return m.GetTopologyHints(logger, pod, container, lifecycle.AddOperation)
}

func disconnectPlugin(logger klog.Logger, m *devicemanager.ManagerImpl, resource, socket string) {
	m.PluginDisconnected(logger, resource, socket)
}

func capacityOf(logger klog.Logger, m *devicemanager.ManagerImpl) (v1.ResourceList, v1.ResourceList, []string) {
	return m.GetCapacity(logger)
}

func sweep(logger klog.Logger, m *devicemanager.ManagerImpl) { m.UpdateAllocatedDevices(logger) }

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

func registerDriver(ctx context.Context, m *dra.Manager, name, endpoint, service string) error {
	return m.GetWatcherHandler().RegisterPlugin(ctx, name, endpoint, []string{service}, nil)
}

func deregisterDriver(ctx context.Context, m *dra.Manager, name, endpoint string) {
	m.GetWatcherHandler().DeRegisterPlugin(ctx, name, endpoint)
}
