package main

import (
	"strconv"
	"strings"
	"time"
)

// behavior is what a container would do.
type behavior struct {
	ends                  bool
	code                  int32
	reason                string
	lasts                 time.Duration // from its start to its end
	startsAfter           time.Duration // from the start of its pod
	isUnready, hasNoImage bool
	failing               string // the command of the probe that fails once the container has run for failsAfter
	failsAfter            time.Duration
}

const reasonOOM = "OOMKilled"

// behavior returns what a container of the pod would do.
func (s *sandbox) behavior(container string) behavior {
	return behaviors(s.config.GetAnnotations()[saysWhat], container)
}

// behaviors returns what an annotation says about a container, or about those that it does not name.
// docs/cluster-node.md describes the values that our own nodes accept in this annotation; anything else is ignored.
func behaviors(text, container string) behavior {
	found := map[string]behavior{}
	for part := range strings.SplitSeq(text, ";") {
		name, words, isNamed := strings.Cut(part, ":")
		if !isNamed {
			name, words = "", part
		}
		name = strings.TrimSpace(name)
		found[name] = found[name].with(strings.Fields(words))
	}
	if one, isNamed := found[container]; isNamed {
		return one
	}
	return found[""]
}

// with returns the behavior after applying a few words to it.
func (b behavior) with(words []string) behavior {
	var after time.Duration
	if n := len(words); n > 2 && words[n-2] == "after" {
		after, _ = time.ParseDuration(words[n-1])
		words = words[:n-2]
	}
	switch strings.Join(words[:min(len(words), 1)], "") {
	case "exit":
		code, _ := strconv.ParseInt(words[len(words)-1], 10, 32)
		b.ends, b.code, b.lasts, b.reason = true, int32(code), after, reasonError
		if code == completed {
			b.reason = reasonCompleted
		}
	case "oom":
		b.ends, b.code, b.lasts, b.reason = true, killed, after, reasonOOM
	case "start":
		b.startsAfter = after
	case "not-live", "not-started":
		b.failing, b.failsAfter = strings.TrimPrefix(words[0], "not-"), after
	case "not-ready":
		b.isUnready = true
	case "no-image":
		b.hasNoImage = true
	}
	return b
}
