package main

import (
	"context"
	"encoding/json"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

type celQuestion struct {
	Expression  string
	Driver      string // the domain for names that have none
	Environment string // stored (what the scheduler compiles with) or new (what the API server accepts)
	Features    struct{ ConsumableCapacity, ListTypeAttributes bool }
	Devices     []struct {
		Name   string
		Device resourceapi.Device
	}
}

type celAnswer struct {
	CompileError any         `json:"compileError"`
	OutputType   any         `json:"outputType"`
	MaxCost      any         `json:"maxCost"`
	Devices      []celResult `json:"devices"`
}

type celResult struct {
	Name   string `json:"name"`
	Result any    `json:"result"`
	Error  any    `json:"error"`
	Cost   any    `json:"cost"`
}

// evaluate compiles a selector, and evaluates it for each device.
func evaluate(ctx context.Context, question []byte) (any, error) {
	var asked celQuestion
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	environmentType := environment.StoredExpressions
	if asked.Environment == "new" {
		environmentType = environment.NewExpressions
	}
	compiler := cel.GetCompiler(cel.Features{
		EnableConsumableCapacity: asked.Features.ConsumableCapacity,
		EnableListTypeAttributes: asked.Features.ListTypeAttributes,
	})
	compiled := compiler.CompileCELExpression(asked.Expression, cel.Options{EnvType: &environmentType})
	answer := celAnswer{Devices: []celResult{}}
	if compiled.Error != nil {
		answer.CompileError = compiled.Error.Error()
		return answer, nil
	}
	answer.OutputType = compiled.OutputType.String()
	answer.MaxCost = compiled.MaxCost
	for _, one := range asked.Devices {
		device, err := celDevice(asked.Driver, &one.Device)
		if err != nil {
			return nil, err
		}
		matches, details, err := compiled.DeviceMatches(ctx, device)
		result := celResult{Name: one.Name, Error: textOf(err)}
		if err == nil {
			result.Result = matches
		}
		if details != nil {
			if cost := details.ActualCost(); cost != nil {
				result.Cost = *cost
			}
		}
		answer.Devices = append(answer.Devices, result)
	}
	return answer, nil
}
