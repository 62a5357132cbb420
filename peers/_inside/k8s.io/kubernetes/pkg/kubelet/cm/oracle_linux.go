package cm

import "k8s.io/kubernetes/pkg/kubelet/cm/dra"

// WithClaims returns a container manager that has only a DRA manager, and reports what containers get from claims.
func WithClaims(m *dra.Manager) *containerManagerImpl { return &containerManagerImpl{draManager: m} }
