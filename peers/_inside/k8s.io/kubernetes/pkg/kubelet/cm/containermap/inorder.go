package containermap

import (
	"fmt"
	"iter"
	"maps"
	"slices"
)

// Of returns the entries of a map in key order, which is one of the orders that Go may choose. It leaves out entries
// that are removed during the iteration.
func Of[M ~map[K]V, K comparable, V any](m M) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		keys := slices.SortedFunc(maps.Keys(m), func(a, b K) int { return slices.Compare(name(a), name(b)) })
		for _, key := range keys {
			if value, ok := m[key]; ok && !yield(key, value) {
				return
			}
		}
	}
}

func name(key any) []byte {
	if driver, ok := key.(interface{ DriverName() string }); ok {
		return []byte(driver.DriverName())
	}
	return fmt.Append(nil, key)
}
