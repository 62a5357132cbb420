package plugin

import (
	"context"
	"fmt"

	"google.golang.org/grpc/connectivity"
)

// WithoutHealthStreams keeps the manager from watching drivers: a history contains what they report. Until 1.36, a
// kubelet watches every driver, and drops the reports of one that lacks the service, at any time after registration.
func (pm *DRAPluginManager) WithoutHealthStreams() { pm.streamHandler = nil }

// WaitUntilConnected waits for the connection to a registered driver. Until then an older instance may be called.
func (pm *DRAPluginManager) WaitUntilConnected(ctx context.Context, driverName, endpoint string) error {
	return pm.waitFor(ctx, driverName, endpoint, func(_ bool, state connectivity.State) bool { return state == connectivity.Ready })
}

// WaitUntilDisconnected waits until the end of a connection has been noticed.
func (pm *DRAPluginManager) WaitUntilDisconnected(ctx context.Context, driverName, endpoint string) error {
	return pm.waitFor(ctx, driverName, endpoint, func(connected bool, _ connectivity.State) bool { return !connected })
}

func (pm *DRAPluginManager) waitFor(ctx context.Context, driverName, endpoint string, done func(bool, connectivity.State) bool) error {
	for {
		plugin, connected := pm.registered(driverName, endpoint)
		if plugin == nil {
			return nil
		}
		state := plugin.conn.GetState()
		if done(connected, state) {
			return nil
		}
		if !plugin.conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("the driver %s at %s stays %s: %w", driverName, endpoint, state, ctx.Err())
		}
	}
}

func (pm *DRAPluginManager) registered(driverName, endpoint string) (*monitoredPlugin, bool) {
	pm.mutex.RLock()
	defer pm.mutex.RUnlock()
	for _, plugin := range pm.store[driverName] {
		if plugin.endpoint == endpoint {
			return plugin, plugin.connected
		}
	}
	return nil, false
}
