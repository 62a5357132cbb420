package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

type applyQuestion struct {
	APIVersion, Of       string
	Subresource, Manager string
	Apply, Force         bool
	Live, Object         json.RawMessage // live is null if there is no object yet
}

// Everything that the API knows about the types of fields. Reading it takes a second.
var typeConverter = sync.OnceValue(func() managedfields.TypeConverter {
	return applyconfigurations.NewTypeConverter(scheme.Scheme)
})

// writeFields writes an object as kube-apiserver does between decoding and validation: server-side apply, or an update.
func writeFields(_ context.Context, question []byte) (any, error) {
	var asked applyQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	kind := schema.FromAPIVersionAndKind(asked.APIVersion, asked.Of)
	manager, err := managedfields.NewDefaultFieldManager(
		typeConverter(), scheme.Scheme, scheme.Scheme, scheme.Scheme, kind, kind.GroupVersion(), asked.Subresource, nil)
	if err != nil {
		return nil, err
	}
	live, err := typedObject(kind, asked.Live)
	if err != nil {
		return nil, err
	}
	var result runtime.Object
	if asked.Apply {
		sent := &unstructured.Unstructured{}
		if err := json.Unmarshal(asked.Object, &sent.Object); err != nil {
			return nil, err
		}
		result, err = manager.Apply(live, sent, asked.Manager, asked.Force)
	} else {
		var sent runtime.Object
		if sent, err = typedObject(kind, asked.Object); err != nil {
			return nil, err
		}
		result, err = manager.Update(live, sent, asked.Manager)
	}
	if err != nil {
		answer := map[string]any{"ok": false, "error": err.Error()}
		var status *apierrors.StatusError
		if errors.As(err, &status) && status.ErrStatus.Details != nil {
			answer["causes"] = status.ErrStatus.Details.Causes
		}
		return answer, nil
	}
	text, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	object, err := typedObject(kind, text) // as it would be stored
	if err != nil {
		return map[string]any{"ok": false, "error": err.Error()}, nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	return map[string]any{"ok": true, "object": object, "managedFields": accessor.GetManagedFields()}, nil
}

// typedObject returns an object as a Go type, or an empty one.
func typedObject(kind schema.GroupVersionKind, text []byte) (runtime.Object, error) {
	object, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil, err
	}
	if len(text) > 0 && string(text) != "null" {
		if err := json.Unmarshal(text, object); err != nil {
			return nil, fmt.Errorf("%s: %w", kind.Kind, err)
		}
	}
	object.GetObjectKind().SetGroupVersionKind(kind)
	return object, nil
}
