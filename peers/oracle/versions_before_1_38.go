//go:build !kubernetes1.38

package main

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Functions whose signatures changed in Kubernetes 1.38.

// A sharedDevice is how an allocator identifies a device of which claims have shares, including the share id.
type sharedDevice = structured.SharedDeviceID

func sharedDeviceOf(id structured.DeviceID, share *types.UID) sharedDevice {
	return structured.MakeSharedDeviceID(id, share)
}

func newAllocator(ctx context.Context, features structured.Features, state structured.AllocatedState, listed classes, slices []*resourceapi.ResourceSlice, cache *cel.Cache) (structured.Allocator, error) {
	return structured.NewAllocator(ctx, features, state, listed, slices, cache)
}

func celDevice(driver string, one *resourceapi.Device) (cel.Device, error) {
	return cel.Device{
		Driver:                   driver,
		AllowMultipleAllocations: one.AllowMultipleAllocations,
		Attributes:               one.Attributes,
		Capacity:                 one.Capacity,
	}, nil
}
