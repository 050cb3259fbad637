package main

import (
	"fmt"
	"math"
	"sort"

	"github.com/anishathalye/porcupine"
)

// A view is a set of operations of one thread that must be linearizable together.
//
//	one daemon      all operations, each between its call and its answer
//	the archive     several daemons: a write lasts until somebody is told that it is ARCHIVED. A read counts if the
//	                archive has what it shows. A read by a daemon that may have been replaced may be a little old.
//	each machine    several daemons: the writes that it answered last until its answer, those of others until any
//	                time, and all that it read or compared itself counts.
//
// The final line says which writes happened. A write that is on it and was never answered is open to the end. One that
// is not on it is left out here; rules.go asks whether it may be missing.
type View struct {
	Name string
	Ops  []porcupine.Operation
}

const never = math.MaxInt64

// Views makes all views of a thread.
func Views(setup Setup, line *Line, ops []Op) []View {
	switch setup.Promise {
	case "committed":
		all := func(Attempt) bool { return true }
		return []View{{"one daemon", events(line, ops, all, all, Setup{})}}
	case "archived":
		isArchived := func(a Attempt) bool { return a.Durability == "archived" }
		inArchive := func(a Attempt) bool {
			return a.Outcome == "absent" || a.Outcome == "ok" && a.Sequence <= a.ArchivedSequence
		}
		views := []View{{"the archive", events(line, ops, isArchived, inArchive, setup)}}
		for _, machine := range machines(ops) {
			isHere := func(a Attempt) bool { return place(a) == machine }
			views = append(views, View{"machine " + machine, events(line, ops, isHere, isHere, Setup{})})
		}
		return views
	}
	return nil
}

func place(attempt Attempt) string {
	if attempt.Disk < 0 {
		return ""
	}
	return fmt.Sprintf("%s, disk %d", attempt.Machine, attempt.Disk)
}

func machines(ops []Op) []string {
	seen, names := map[string]bool{"": true}, []string(nil)
	for _, op := range ops {
		for _, attempt := range op.Attempts {
			if name := place(attempt); !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	sort.Strings(names)
	return names
}

// events makes the operations of a view: `ends` says which answers end a write, `counts` which readings are in it, and
// `bounds` how old they may be.
func events(line *Line, ops []Op, ends, counts func(Attempt) bool, bounds Setup) []porcupine.Operation {
	var found []porcupine.Operation
	add := func(op Op, event Event, call, end int64) {
		event.Number = len(found)
		found = append(found, porcupine.Operation{ClientId: op.Client, Input: event, Call: call, Return: end})
	}
	for _, op := range ops {
		if op.Do == "append" || op.Do == "save" {
			if number := line.Place[op.Token]; number > 0 {
				add(op, write(op, line.States[number]), begin(op), end(op, line, ends))
			}
		}
		for _, attempt := range op.Attempts {
			event, isReading := reading(op, attempt, line)
			if !isReading || !counts(attempt) {
				continue
			}
			call := attempt.Call
			if attempt.Outcome == "ok" && attempt.Owner == "" {
				call -= bounds.staleness(attempt)
			}
			add(op, event, call, attempt.Return)
		}
	}
	return found
}

func (s Setup) staleness(attempt Attempt) int64 {
	if attempt.Stormy {
		return max(s.StalenessNs, s.StalenessInStormNs)
	}
	return s.StalenessNs
}

func write(op Op, made State) Event {
	event := Event{Does: "write", State: made, Token: op.Token, ExpectedVersion: -1}
	event.Text = fmt.Sprintf("append %s → %d", op.Token, made.Version)
	if op.Do == "save" {
		event.ExpectedVersion, event.ExpectedDigest = op.ExpectedVersion, op.ExpectedDigest
		event.Text = fmt.Sprintf("save %s on %d → %d", op.Token, op.ExpectedVersion, made.Version)
	}
	return event
}

// begin is when the first call was made that may have written something.
func begin(op Op) int64 {
	for _, attempt := range op.Attempts {
		if !wroteNothing(attempt) {
			return attempt.Call
		}
	}
	return op.Attempts[0].Call
}

func wroteNothing(attempt Attempt) bool {
	return attempt.Outcome == "refused" || attempt.Outcome == "mismatch"
}

// end is when a write was over for certain: its first answer that counts.
func end(op Op, line *Line, ends func(Attempt) bool) int64 {
	over := int64(never)
	for _, attempt := range op.Attempts {
		if attempt.Outcome == "ok" && line.Has(attempt.Version, attempt.Digest) && ends(attempt) {
			over = min(over, attempt.Return)
		}
	}
	return over
}

// reading is what an attempt tells about the thread at that moment. A state that is not on the line is left to rules.go,
// unless there is only one daemon.
func reading(op Op, attempt Attempt, line *Line) (Event, bool) {
	seen := State{attempt.Version, attempt.Digest, Sum(attempt.Log)}
	switch {
	case op.Do == "read" && attempt.Outcome == "absent":
		return Event{Does: "read", Text: "read → nothing"}, true
	case op.Do == "read" && attempt.Outcome == "ok":
		event := Event{Does: "read", State: seen, Text: fmt.Sprintf("read → %d %.8s", seen.Version, seen.Digest)}
		return event, line.Has(seen.Version, seen.Digest)
	case op.Do == "save" && attempt.Outcome == "mismatch":
		event := Event{Does: "mismatch", State: seen, ExpectedVersion: op.ExpectedVersion, ExpectedDigest: op.ExpectedDigest}
		event.Text = fmt.Sprintf("save on %d refused: %d %.8s", op.ExpectedVersion, seen.Version, seen.Digest)
		return event, line.Has(seen.Version, seen.Digest)
	}
	return Event{}, false
}
