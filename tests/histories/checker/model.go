package main

import (
	"crypto/sha256"
	"fmt"

	"github.com/anishathalye/porcupine"
)

// The sequential model of a thread: one version after the other, each of which appends one token to one log.

// State is a thread between two operations. Log stands for the whole log: a hash over its tokens.
type State struct {
	Version int
	Digest  string
	Log     [16]byte
}

// Event is what an operation did. Porcupine gets it as input; the output is part of it.
type Event struct {
	// "write", "read" or "mismatch".
	Does string
	// What the write made, or the read showed. Of a mismatch: the head.
	State State
	// What the write appended.
	Token string
	// What the write expected: -1 = anything. No digest = any digest.
	ExpectedVersion int
	ExpectedDigest  string
	// Its place in its view, and what it is for people.
	Number int
	Text   string
}

// Next is the log after one more token.
func Next(log [16]byte, token string) [16]byte {
	sum := sha256.Sum256(append(log[:], token...))
	return [16]byte(sum[:16])
}

// Sum is the log of all these tokens.
func Sum(tokens []string) (log [16]byte) {
	for _, token := range tokens {
		log = Next(log, token)
	}
	return log
}

func (e Event) fits(state State) bool {
	is := e.ExpectedVersion < 0 || e.ExpectedVersion == state.Version
	return is && (e.ExpectedDigest == "" || e.ExpectedDigest == state.Digest)
}

// step says whether an event can happen in a state, and what the state is then.
func step(state State, event Event) (bool, State) {
	switch event.Does {
	case "write":
		made := State{state.Version + 1, event.State.Digest, Next(state.Log, event.Token)}
		return event.fits(state) && made.Version == event.State.Version, made
	case "mismatch":
		return !event.fits(state) && state.Version == event.State.Version && state.Digest == event.State.Digest, state
	default:
		return state == event.State, state
	}
}

// Thread is the model as Porcupine wants it.
var Thread = porcupine.Model{
	Init: func() any { return State{} },
	Step: func(state, input, _ any) (bool, any) { return step(state.(State), input.(Event)) },
	DescribeOperation: func(input, _ any) string {
		return input.(Event).Text
	},
	DescribeState: func(state any) string {
		is := state.(State)
		return fmt.Sprintf("version %d %.8s", is.Version, is.Digest)
	},
}
