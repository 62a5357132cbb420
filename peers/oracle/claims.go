package main

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra/state"
)

// A jsonClaim is a claim of the state file whose pods are a sorted list.
type jsonClaim struct {
	ClaimUID, ClaimName, Namespace string
	PodUIDs                        []string
	DriverState                    map[string]state.DriverState
}

func (c jsonClaim) state() state.ClaimInfoState {
	claim := state.ClaimInfoState{ClaimUID: types.UID(c.ClaimUID), ClaimName: c.ClaimName, Namespace: c.Namespace, DriverState: c.DriverState}
	if c.PodUIDs != nil {
		claim.PodUIDs = sets.New(c.PodUIDs...)
	}
	return claim
}

func jsonClaims(claims state.ClaimInfoStateList) []jsonClaim {
	all := []jsonClaim{}
	for _, one := range claims {
		all = append(all, jsonClaim{string(one.ClaimUID), one.ClaimName, one.Namespace, sets.List(one.PodUIDs), one.DriverState})
	}
	return all
}
