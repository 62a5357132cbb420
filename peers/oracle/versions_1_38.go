//go:build kubernetes1.38

package main

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	draapi "k8s.io/dynamic-resource-allocation/api"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Functions whose signatures changed in Kubernetes 1.38.

// A sharedDevice is how an allocator identifies a device of which claims have shares. Since 1.38, it has no share id.
type sharedDevice = structured.DeviceID

func sharedDeviceOf(id structured.DeviceID, _ *types.UID) sharedDevice { return id }

// newAllocator passes the slices in the form in which the scheduler has kept them since 1.38.
func newAllocator(ctx context.Context, features structured.Features, state structured.AllocatedState, listed classes, slices []*resourceapi.ResourceSlice, cache *cel.Cache) (structured.Allocator, error) {
	var converted []*draapi.ResourceSlice
	for _, one := range slices {
		slice := &draapi.ResourceSlice{}
		if err := draapi.Convert_v1_ResourceSlice_To_api_ResourceSlice(one, slice, nil); err != nil {
			return nil, err
		}
		converted = append(converted, slice)
	}
	return structured.NewAllocator(ctx, features, state, listed, converted, cache)
}

// celDevice converts the slice that contains the device, because a device alone cannot be converted.
func celDevice(driver string, one *resourceapi.Device) (cel.Device, error) {
	slice := &draapi.ResourceSlice{}
	within := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver, Devices: []resourceapi.Device{*one}}}
	if err := draapi.Convert_v1_ResourceSlice_To_api_ResourceSlice(within, slice, nil); err != nil {
		return cel.Device{}, err
	}
	device := slice.Spec.Devices[0]
	return cel.Device{
		Driver:                   driver,
		AllowMultipleAllocations: device.AllowMultipleAllocations,
		LookupUniqueString:       slice.LookupUniqueString,
		Attributes:               device.Attributes,
		Capacity:                 device.Capacity,
	}, nil
}
