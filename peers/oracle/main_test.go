package main

import (
	"strings"
	"testing"
)

// answers returns what the program prints for these lines.
func answers(t *testing.T, lines ...string) []string {
	t.Helper()
	var out strings.Builder
	if err := serve(strings.NewReader(strings.Join(lines, "\n")), &out); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestEachLineHasOneAnswerInItsPlace(t *testing.T) {
	got := answers(t, `{"kind": "none"}`, `not JSON`, `{"kind": "cel", "expression": "true", "devices": [{"name": "d"}]}`)
	if len(got) != 3 {
		t.Fatalf("expected 3 answers, got %q", got)
	}
	for index, expected := range []string{"expected one of the kinds", "expected a JSON object", `"result":true`} {
		if !strings.Contains(got[index], expected) {
			t.Errorf("expected %q in answer %d, got %s", expected, index, got[index])
		}
	}
}

func TestEachAllocatorIsAsked(t *testing.T) {
	question := `{"kind": "allocate", "allocator": "NAME", "node": {"metadata": {"name": "n1"}}, "classes": [{"metadata": {"name": "any"}}],
		"slices": [{"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n1", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "one"}]}}],
		"claims": [{"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}}]}}}]}`
	for _, name := range []string{"stable", "incubating", "experimental", ""} {
		line := strings.ReplaceAll(strings.ReplaceAll(question, "NAME", name), "\n", " ")
		if got := answers(t, line)[0]; !strings.Contains(got, `"device":"one"`) {
			t.Errorf("expected device one from allocator %q, got %s", name, got)
		}
	}
	line := strings.ReplaceAll(strings.ReplaceAll(question, "NAME", "none"), "\n", " ")
	if got := answers(t, line)[0]; !strings.Contains(got, "no allocator available") {
		t.Errorf("expected an error, got %s", got)
	}
}
