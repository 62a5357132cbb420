package main

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/blang/semver/v4"
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper"
)

type textQuestion struct{ Text string }

// readQuantity reads a quantity, and writes it again.
func readQuantity(_ context.Context, question []byte) (any, error) {
	var asked textQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	quantity, err := resource.ParseQuantity(asked.Text)
	if err != nil {
		return map[string]any{"ok": false}, nil
	}
	_, isInt64 := quantity.AsInt64()
	canonical := quantity.DeepCopy()
	canonical.Neg() // which discards the text as it was read
	canonical.Neg()
	return map[string]any{
		"ok": true, "text": quantity.String(), "canonical": canonical.String(), "value": quantity.Value(), "exact": quantity.AsDec().String(), "int64": isInt64,
	}, nil
}

// judgeName answers which kinds of name a text can be.
func judgeName(_ context.Context, question []byte) (any, error) {
	var asked textQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	_, err := semver.Parse(asked.Text)
	return map[string]bool{
		"dns_label":         len(validation.IsDNS1123Label(asked.Text)) == 0,
		"dns_subdomain":     len(validation.IsDNS1123Subdomain(asked.Text)) == 0,
		"label_value":       len(validation.IsValidLabelValue(asked.Text)) == 0,
		"qualified_name":    len(validation.IsQualifiedName(asked.Text)) == 0,
		"semantic_version":  err == nil,
		"extended_resource": helper.IsExtendedResourceName(v1.ResourceName(asked.Text)),
	}, nil
}
