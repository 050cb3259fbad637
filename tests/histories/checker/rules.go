package main

import (
	"fmt"
	"strings"
)

// Violation is a broken promise.
type Violation struct {
	Rule    string `json:"rule"`
	Thread  string `json:"thread"`
	Text    string `json:"text"`
	Picture string `json:"picture,omitempty"`
}

// Rules holds what is known of one thread while its rules are checked.
type Rules struct {
	setup    Setup
	thread   string
	line     *Line // nil if the final states do not fit together
	ops      []Op
	finals   []Final
	orphans  []Orphan
	losses   []Loss
	setBack  int64
	findings []Finding
	times    map[string]int
	found    []Violation
}

// One cause breaks a rule many times.
const tellMax = 4

func (r *Rules) find(rule, format string, facts ...any) {
	r.times[rule]++
	if r.times[rule] > tellMax {
		return
	}
	r.found = append(r.found, Violation{Rule: rule, Thread: r.thread, Text: fmt.Sprintf(format, facts...)})
}

// check runs all rules that need no order of time.
func (r *Rules) check() []Violation {
	for _, finding := range r.findings {
		r.find("verify", "%s: %s", finding.Machine, finding.Text)
	}
	r.answers()
	r.finalStates()
	r.contents()
	r.tokens()
	r.orphansKeep()
	if r.line != nil {
		r.acknowledged()
		r.denied()
		r.shown()
	}
	for index := range r.found {
		if more := r.times[r.found[index].Rule] - tellMax; more > 0 {
			r.found[index].Text += fmt.Sprintf(" (and %d more)", more)
		}
	}
	return r.found
}

// answers: some errors are never right, and a calm history has no fenced save.
func (r *Rules) answers() {
	for _, op := range r.ops {
		for _, attempt := range op.Attempts {
			// A bucket that was set back may be refused, by any daemon that knew the newer one.
			isExcused := r.setup.Promise == "set back" && strings.HasPrefix(attempt.Reason, "CORRUPT")
			if attempt.Outcome == "broken" && !isExcused {
				r.find("broken answer", "operation %d (%s at %s): %s", op.ID, op.Do, attempt.Machine, attempt.Reason)
			}
			// A machine with a new disk is another owner of the same name.
			if attempt.Owner != "" && attempt.Owner == attempt.Machine && attempt.Disk == 0 {
				r.find("broken answer", "operation %d: %s names itself as the other owner", op.ID, attempt.Machine)
			}
			if attempt.Outcome == "fenced" && r.setup.Calm {
				r.find("fork", "operation %d at %s was fenced although nobody had a reason to take over", op.ID, attempt.Machine)
			}
		}
	}
	if r.setup.Calm {
		for _, orphan := range r.orphans {
			r.find("fork", "%s has %s although nobody had a reason to take over", orphan.Machine, orphan.Name)
		}
	}
}

// finalStates: every machine, and one that was never there, shows the same versions.
func (r *Rules) finalStates() {
	var first *Line
	var who string
	for _, final := range r.finals {
		line, err := NewLine(final)
		if final.Error != "" {
			err = fmt.Errorf("cannot read the thread at the end: %s", final.Error)
		}
		if r.setup.Promise == "set back" { // others may show what was lost, or refuse
			if final.Fresh && err == nil {
				r.line = line
			}
			continue
		}
		if err != nil {
			r.find("final state", "%s: %v", final.Machine, err)
			continue
		}
		if first == nil {
			first, who = line, final.Machine
		}
		if tip := line.Tip(); tip != first.Tip() {
			r.find("final state", "%s ends at version %d %.8s, %s at version %d %.8s",
				who, first.Tip().Version, first.Tip().Digest, final.Machine, tip.Version, tip.Digest)
		}
		if final.Fresh {
			first, who = line, final.Machine
		}
	}
	if r.setup.Promise == "set back" {
		return
	}
	if r.line = first; first == nil {
		r.find("final state", "nobody can read the thread at the end")
	}
}

// contents: one version and digest has one content, wherever and whenever it is shown.
func (r *Rules) contents() {
	seen := map[string]State{}
	where := map[string]string{}
	see := func(version int, digest string, log []string, place string) {
		state := State{version, digest, Sum(log)}
		if before, is := seen[digest]; is && before != state {
			r.find("content", "digest %.8s is version %d with other content at %s than at %s", digest, version, place, where[digest])
			return
		}
		seen[digest], where[digest] = state, place
	}
	for _, op := range r.ops {
		for _, attempt := range op.Attempts {
			if (op.Do == "read" || op.Do == "look") && attempt.Outcome == "ok" {
				see(attempt.Version, attempt.Digest, attempt.Log, fmt.Sprintf("%s (operation %d)", attempt.Machine, op.ID))
			}
		}
	}
	for _, final := range r.finals {
		var log []string
		for _, version := range final.Versions {
			log = append(log, version.Token)
			see(version.Version, version.Digest, log, final.Machine+" (final history)")
		}
	}
	for _, orphan := range r.orphans {
		for _, version := range orphan.Versions {
			see(version.Version, version.Digest, version.Log, fmt.Sprintf("%s of %s (%s)", orphan.Name, orphan.Machine, orphan.Reading))
		}
	}
	for _, op := range r.ops {
		for _, attempt := range op.Attempts {
			made, is := seen[attempt.Digest]
			if isWrite(op) && attempt.Outcome == "ok" && is && made.Version != attempt.Version {
				r.find("content", "operation %d wrote version %d %.8s, which is shown as version %d", op.ID, attempt.Version, attempt.Digest, made.Version)
			}
		}
	}
}

// tokens: no log has a token twice, and none has one that nobody wrote.
func (r *Rules) tokens() {
	writers := map[string]Op{}
	for _, op := range r.ops {
		if isWrite(op) {
			writers[op.Token] = op
		}
	}
	told := map[string]bool{}
	once := func(rule, token, format string, facts ...any) {
		if !told[rule+token] {
			told[rule+token] = true
			r.find(rule, format, facts...)
		}
	}
	see := func(log []string, place string) {
		there := map[string]bool{}
		for _, token := range log {
			if there[token] {
				once("doubled", token, "token %s is twice in one log at %s", token, place)
			}
			there[token] = true
			if op, is := writers[token]; !is {
				once("phantom", token, "token %s at %s was never sent", token, place)
			} else if cannotHaveHappened(op) {
				once("phantom", token, "token %s at %s is of operation %d, which was told that nothing is written", token, place, op.ID)
			}
		}
	}
	for _, op := range r.ops {
		for _, attempt := range op.Attempts {
			see(attempt.Log, fmt.Sprintf("%s (operation %d)", attempt.Machine, op.ID))
		}
	}
	for _, final := range r.finals {
		see(final.Log, final.Machine+" (final)")
	}
	for _, orphan := range r.orphans {
		for _, version := range orphan.Versions {
			see(version.Log, orphan.Name+" of "+orphan.Machine)
		}
	}
}

func isWrite(op Op) bool { return op.Do == "append" || op.Do == "save" }

func cannotHaveHappened(op Op) bool {
	for _, attempt := range op.Attempts {
		if !wroteNothing(attempt) {
			return false
		}
	}
	return true
}
