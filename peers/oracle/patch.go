package main

import (
	"context"
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

type patchQuestion struct {
	Type          string // json, merge or strategic
	Of            string // Node, Pod or ResourceClaim
	Object, Patch json.RawMessage
}

var patchedKinds = map[string]any{"Node": v1.Node{}, "Pod": v1.Pod{}, "ResourceClaim": resourceapi.ResourceClaim{}}

// applyPatch patches an object as kube-apiserver does, before it is decoded.
func applyPatch(_ context.Context, question []byte) (any, error) {
	var asked patchQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	kind, ok := patchedKinds[asked.Of]
	if !ok {
		return nil, fmt.Errorf("unknown kind %q", asked.Of)
	}
	var result []byte
	var err error
	switch asked.Type {
	case "strategic":
		result, err = strategicpatch.StrategicMergePatch(asked.Object, asked.Patch, kind)
	case "merge":
		result, err = jsonpatch.MergePatch(asked.Object, asked.Patch)
	case "json":
		var patch jsonpatch.Patch
		if patch, err = jsonpatch.DecodePatch(asked.Patch); err == nil {
			result, err = patch.Apply(asked.Object)
		}
	default:
		return nil, fmt.Errorf("unknown type %q", asked.Type)
	}
	if err != nil {
		return map[string]any{"ok": false, "error": err.Error()}, nil
	}
	return map[string]any{"ok": true, "object": json.RawMessage(result)}, nil
}
