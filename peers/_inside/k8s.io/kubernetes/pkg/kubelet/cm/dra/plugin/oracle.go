package plugin

import (
	"context"
	"fmt"

	"google.golang.org/grpc/connectivity"
)

// WaitUntilConnected waits for the connection to a registered driver. Until then an older instance may be called.
func (pm *DRAPluginManager) WaitUntilConnected(ctx context.Context, driverName, endpoint string) error {
	for _, plugin := range pm.registered(driverName) {
		for state := plugin.conn.GetState(); plugin.endpoint == endpoint && state != connectivity.Ready; state = plugin.conn.GetState() {
			if !plugin.conn.WaitForStateChange(ctx, state) {
				return fmt.Errorf("the driver %s at %s is not connected: %w", driverName, endpoint, ctx.Err())
			}
		}
	}
	return nil
}

func (pm *DRAPluginManager) registered(driverName string) []*monitoredPlugin {
	pm.mutex.RLock()
	defer pm.mutex.RUnlock()
	return append([]*monitoredPlugin{}, pm.store[driverName]...)
}
