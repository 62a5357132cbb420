// Command oracle answers questions with Kubernetes' own code: one JSON object per line on standard input, one on
// standard output, in the same order.
//
//	{"kind": "quantity", "text": "1Ki"}
//	{"answer": {...}}    or    {"error": "..."} if the question cannot be asked
//
// README.md beside this file lists the kinds.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"k8s.io/klog/v2"
)

// An answerer answers the questions of one kind. A question is JSON, and an answer becomes JSON.
type answerer func(ctx context.Context, question []byte) (any, error)

var kinds = map[string]answerer{
	"allocate":          allocate,
	"apply":             writeFields,
	"bench":             measure,
	"cel":               evaluate,
	"checkpoint-decode": decodeCheckpoint,
	"checkpoint-encode": encodeCheckpoint,
	"claims-decode":     decodeClaims,
	"claims-encode":     encodeClaims,
	"claims":            playClaims,
	"devices":           playDevices,
	"extended":          extend,
	"name":              judgeName,
	"numa":              playNUMA,
	"patch":             applyPatch,
	"quantity":          readQuantity,
	"topology":          mergeHints,
	"topology-options":  startTopologyManager,
}

func main() {
	klog.SetLogger(klog.New(nil)) // what Kubernetes logs is not an answer
	if len(os.Args) == 2 && os.Args[1] == "plugin" {
		if err := runPlugin(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "oracle plugin:", err)
			os.Exit(1)
		}
		return
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

// serve answers each line of in until it ends.
func serve(in io.Reader, out io.Writer) error {
	reader := bufio.NewReaderSize(in, 1<<20)
	writer := bufio.NewWriter(out)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 0 {
			if err := json.NewEncoder(writer).Encode(reply(line)); err != nil {
				return err
			}
			if err := writer.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// reply answers one question. A panic in Kubernetes' code is an answer too.
func reply(line []byte) (result map[string]any) {
	defer func() {
		if cause := recover(); cause != nil {
			result = map[string]any{"panic": fmt.Sprint(cause), "stack": string(debug.Stack())}
		}
	}()
	var question struct{ Kind string }
	if err := json.Unmarshal(line, &question); err != nil {
		return map[string]any{"error": "expected a JSON object on one line: " + err.Error()}
	}
	answer, ok := kinds[question.Kind]
	if !ok {
		return map[string]any{"error": fmt.Sprintf("expected one of the kinds %s, got %q", strings.Join(names(), ", "), question.Kind)}
	}
	value, err := answer(context.Background(), line)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	return map[string]any{"answer": value}
}

func names() []string {
	var all []string
	for name := range kinds {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// textOf returns the text of an error, or nil if there is none.
func textOf(err error) any {
	if err == nil {
		return nil
	}
	return err.Error()
}
