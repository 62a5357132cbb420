package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// shareID replaces the random id of each share.
const shareID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"

type allocationQuestion struct {
	Allocator string // stable, incubating or experimental; if empty, the one that Kubernetes picks
	Features  json.RawMessage
	Node      *v1.Node
	Classes   classes
	Slices    []*resourceapi.ResourceSlice
	Claims    []*resourceapi.ResourceClaim
	Allocated struct {
		Devices []struct{ Driver, Pool, Device string }
		Shared  []struct {
			Driver, Pool, Device string
			ShareID              types.UID
		}
		Capacity []struct {
			Driver, Pool, Device string
			Consumed             map[resourceapi.QualifiedName]resource.Quantity
		}
	}
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("not found: %s", name)
}

type allocationAnswer struct {
	OK              bool                           `json:"ok"`
	Error           any                            `json:"error"`
	ErrorOnNodeOnly bool                           `json:"errorOnNodeOnly"`
	Results         []resourceapi.AllocationResult `json:"results"`
}

var caches = map[cel.Features]*cel.Cache{}

// allocate asks one of the Kubernetes scheduler's allocators for the devices of claims on one node. The scheduler
// gives it ten seconds, and so do we.
func allocate(ctx context.Context, question []byte) (any, error) {
	var asked allocationQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	var features structured.Features
	if len(asked.Features) > 0 {
		if err := json.Unmarshal(asked.Features, &features); err != nil {
			return nil, err
		}
	}
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[sharedDevice](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, one := range asked.Allocated.Devices {
		state.AllocatedDevices.Insert(structured.MakeDeviceID(one.Driver, one.Pool, one.Device))
	}
	for _, one := range asked.Allocated.Shared {
		id := structured.MakeDeviceID(one.Driver, one.Pool, one.Device)
		state.AllocatedSharedDeviceIDs.Insert(sharedDeviceOf(id, &one.ShareID))
	}
	for _, one := range asked.Allocated.Capacity {
		id := structured.MakeDeviceID(one.Driver, one.Pool, one.Device)
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, one.Consumed))
	}
	expressions := cel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity,
		EnableListTypeAttributes: features.ListTypeAttributes,
	}
	if caches[expressions] == nil {
		caches[expressions] = cel.NewCache(1000, expressions)
	}
	if asked.Allocator == "" {
		structured.EnableAllocators()
	} else {
		structured.EnableAllocators(asked.Allocator)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	allocator, err := newAllocator(ctx, features, state, asked.Classes, asked.Slices, caches[expressions])
	if err != nil {
		return nil, err
	}
	results, err := allocator.Allocate(ctx, asked.Node, asked.Claims)
	answer := allocationAnswer{
		OK:              err == nil && results != nil,
		Error:           textOf(err),
		ErrorOnNodeOnly: errors.Is(err, structured.ErrFailedAllocationOnNode),
		Results:         results,
	}
	for _, result := range results {
		for index := range result.Devices.Results {
			if one := &result.Devices.Results[index]; one.ShareID != nil {
				id := types.UID(shareID)
				one.ShareID = &id
			}
		}
	}
	return answer, nil
}
