package main

import "fmt"

// Line is the history of a thread as a machine shows it at the end: what happened, and in which order.
type Line struct {
	Thread   string
	Versions []Version // of number 1, 2, 3 …
	States   []State   // after 0, 1, 2 … versions
	Place    map[string]int
}

// NewLine reads the final state of a machine; the error says what does not fit together.
func NewLine(final Final) (*Line, error) {
	line := &Line{Thread: final.Thread, States: []State{{}}, Place: map[string]int{}}
	for number, version := range final.Versions {
		if version.Version != number+1 {
			return nil, fmt.Errorf("version %d comes where %d belongs", version.Version, number+1)
		}
		before := line.States[number]
		line.States = append(line.States, State{version.Version, version.Digest, Next(before.Log, version.Token)})
		if first := line.Place[version.Token]; first != 0 {
			return nil, fmt.Errorf("token %s is there twice, as versions %d and %d", version.Token, first, version.Version)
		}
		line.Place[version.Token] = version.Version
		line.Versions = append(line.Versions, version)
	}
	if tip := line.Tip(); final.Version != tip.Version || final.Digest != tip.Digest || Sum(final.Log) != tip.Log {
		return nil, fmt.Errorf("its state, version %d with %d tokens, is not what its %d versions make",
			final.Version, len(final.Log), tip.Version)
	}
	return line, nil
}

// Tip is the newest state.
func (l *Line) Tip() State { return l.States[len(l.States)-1] }

// Has says whether a version with this digest is part of the line.
func (l *Line) Has(version int, digest string) bool {
	return version >= 0 && version < len(l.States) && l.States[version].Digest == digest
}
