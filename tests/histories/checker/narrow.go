package main

import (
	"fmt"
	"math"
	"sort"

	"github.com/anishathalye/porcupine"
)

// Porcupine searches, and a search through many operations that overlap takes exponential time. Here the order of the
// saves is known: version n comes before n+1, and a reading of n comes between the two. So each operation can be
// narrowed: it happens after all earlier versions were begun to be written or read, and before all later ones are over.
// A history is linearizable if and only if the narrowed one is.

func version(operation porcupine.Operation) int { return operation.Input.(Event).State.Version }

func isWriting(operation porcupine.Operation) bool { return operation.Input.(Event).Does == "write" }

// sparse leaves out readings that say no more than two others of the same state: one that began no earlier, and one
// that ended no later.
func sparse(operations []porcupine.Operation) []porcupine.Operation {
	last, first := map[State]int{}, map[State]int{}
	for index, operation := range operations {
		if event := operation.Input.(Event); event.Does == "read" {
			if at, is := last[event.State]; !is || operation.Call > operations[at].Call {
				last[event.State] = index
			}
			if at, is := first[event.State]; !is || operation.Return < operations[at].Return {
				first[event.State] = index
			}
		}
	}
	var kept []porcupine.Operation
	for index, operation := range operations {
		state := operation.Input.(Event).State
		if operation.Input.(Event).Does != "read" || last[state] == index || first[state] == index {
			kept = append(kept, operation)
		}
	}
	return kept
}

// narrow returns the operations with narrower times, in the order of their versions. The text says which two operations
// contradict each other; empty = none do. Those that do keep their own times.
func narrow(operations []porcupine.Operation) ([]porcupine.Operation, string) {
	sorted := append([]porcupine.Operation(nil), operations...)
	sort.SliceStable(sorted, func(i, j int) bool { // a write before the readings of its version
		if version(sorted[i]) != version(sorted[j]) {
			return version(sorted[i]) < version(sorted[j])
		}
		return isWriting(sorted[i]) && !isWriting(sorted[j])
	})
	calls, returns := make([]int64, len(sorted)), make([]int64, len(sorted))
	before, after := make([]int, len(sorted)), make([]int, len(sorted)) // which operation a bound comes from
	bound(sorted, calls, before)
	bound(mirrored(sorted), returns, after)
	text := ""
	narrowed := append([]porcupine.Operation(nil), sorted...)
	for index := range sorted {
		mirror := len(sorted) - 1 - index
		call, end := calls[index], -returns[mirror]
		if call <= end {
			narrowed[index].Call, narrowed[index].Return = call, end
		} else if text == "" {
			early, late := sorted[before[index]], sorted[len(sorted)-1-after[mirror]]
			text = fmt.Sprintf("%q (client %d) was over %.3f s before %q (client %d) began", late.Input.(Event).Text,
				late.ClientId, float64(call-end)/1e9, early.Input.(Event).Text, early.ClientId)
		}
	}
	return narrowed, text
}

// bound finds the earliest time of each operation: no earlier than those that must come before it began. Readings of one
// version come in any order.
func bound(sorted []porcupine.Operation, calls []int64, from []int) {
	latest, source := int64(math.MinInt64), -1
	for begin := 0; begin < len(sorted); {
		end := begin + 1 // a write alone, or all readings of one version
		for !isWriting(sorted[begin]) && end < len(sorted) && !isWriting(sorted[end]) && version(sorted[end]) == version(sorted[begin]) {
			end++
		}
		for index := begin; index < end; index++ {
			calls[index], from[index] = latest, source
			if sorted[index].Call > latest {
				calls[index], from[index] = sorted[index].Call, index
			}
		}
		for index := begin; index < end; index++ {
			if calls[index] > latest {
				latest, source = calls[index], from[index]
			}
		}
		begin = end
	}
}

// mirrored turns time round, so that what comes after comes before.
func mirrored(sorted []porcupine.Operation) []porcupine.Operation {
	turned := make([]porcupine.Operation, len(sorted))
	for index, operation := range sorted {
		operation.Call, operation.Return = -operation.Return, -operation.Call
		turned[len(sorted)-1-index] = operation
	}
	return turned
}
