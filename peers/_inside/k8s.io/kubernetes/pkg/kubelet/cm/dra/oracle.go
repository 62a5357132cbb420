package dra

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	draplugin "k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra/state"
	"k8s.io/kubernetes/pkg/kubelet/config"
)

// StartWithoutLoop makes the manager usable. It reconciles only when Reconcile is called.
func (m *Manager) StartWithoutLoop(ctx context.Context, active ActivePodsFunc, ready config.SourcesReady) {
	m.initDRAPluginManager(ctx, func(context.Context) (*v1.Node, error) { return &v1.Node{}, nil }, time.Hour)
	m.draPlugins.WithoutHealthStreams()
	m.activePods, m.sourcesReady = active, ready
}

// Plugins returns the object that manages the connections to drivers.
func (m *Manager) Plugins() *draplugin.DRAPluginManager { return m.draPlugins }

// Reconcile releases the claims of pods that are gone.
func (m *Manager) Reconcile(ctx context.Context) { m.reconcileLoop(ctx) }

// Claims returns the claims in memory, sorted by name, and the names of those that are prepared.
func (m *Manager) Claims() (state.ClaimInfoStateList, []string) {
	m.cache.RLock()
	defer m.cache.RUnlock()
	claims, prepared := state.ClaimInfoStateList{}, []string{}
	for _, info := range m.cache.claimInfo {
		claims = append(claims, *info.ClaimInfoState.DeepCopy())
		if info.isPrepared() {
			prepared = append(prepared, info.Namespace+"/"+info.ClaimName)
		}
	}
	slices.SortFunc(claims, func(a, b state.ClaimInfoState) int {
		return slices.Compare([]string{a.Namespace, a.ClaimName}, []string{b.Namespace, b.ClaimName})
	})
	slices.Sort(prepared)
	return claims, prepared
}
