package main

import "fmt"

// The rules about what was answered: it is where it must be, and nowhere else.

// orphansKeep: what is set aside stays as it was written.
func (r *Rules) orphansKeep() {
	for _, orphan := range r.orphans {
		if orphan.Error != "" {
			r.find("orphan", "%s of %s cannot be read (%s): %s", orphan.Name, orphan.Machine, orphan.Reading, orphan.Error)
		}
		for _, version := range orphan.Versions {
			if len(version.Log) != version.Version || version.Log[version.Version-1] != version.Token {
				r.find("orphan", "version %d of %s of %s appended %s by its history, and shows other content (%s)",
					version.Version, orphan.Name, orphan.Machine, version.Token, orphan.Reading)
			}
		}
	}
}

// acknowledged: what was answered is in the thread, or, if it was not ARCHIVED, in one orphan of that machine.
func (r *Rules) acknowledged() {
	for _, op := range r.ops {
		if !isWrite(op) {
			continue
		}
		for _, attempt := range op.Attempts {
			if attempt.Call < r.setBack { // what was answered before may be lost, and a retry must not call it archived
				continue
			}
			if attempt.Outcome != "ok" || r.line.Has(attempt.Version, attempt.Digest) {
				continue
			}
			what := fmt.Sprintf("operation %d (%s, token %s) was answered %s version %d %.8s by %s",
				op.ID, op.Do, op.Token, attempt.Durability, attempt.Version, attempt.Digest, attempt.Machine)
			if attempt.Durability == "archived" || r.setup.Promise == "committed" {
				r.find("lost", "%s, which is not in the thread", what)
			} else if r.setup.Promise == "set back" {
				continue // the line that was lost goes on at its owner, and is not archived
			} else if places := r.setAside(attempt, op.Token); len(places) != 1 && !r.isExcused(attempt) {
				r.find("lost", "%s; it is not in the thread, and in %d orphans there %v", what, len(places), places)
			}
		}
	}
}

// denied: what was answered not to be in the thread is not in it.
func (r *Rules) denied() {
	for _, op := range r.ops {
		number, isFenced, isOk := r.line.Place[op.Token], false, false
		if !isWrite(op) || number == 0 {
			continue
		}
		for _, attempt := range op.Attempts {
			isHere := attempt.Version > 0 && r.line.Has(attempt.Version, attempt.Digest)
			switch {
			case attempt.Outcome == "fenced" && isHere:
				r.find("fork", "operation %d: %s says that version %d %.8s is set aside, and it is in the thread",
					op.ID, attempt.Machine, attempt.Version, attempt.Digest)
			case attempt.Outcome == "mismatch" && r.setup.Promise == "committed":
				r.find("retry", "operation %d made version %d, and %s answered a retry that it does not fit", op.ID, number, attempt.Machine)
			case attempt.Outcome == "mismatch" && isOk && attempt.Version < op.ExpectedVersion:
				r.find("retry", "operation %d made version %d, and %s answered a retry from the older version %d",
					op.ID, number, attempt.Machine, attempt.Version)
			}
			isFenced = isFenced || attempt.Outcome == "fenced"
			isOk = isOk || attempt.Outcome == "ok" && isHere
		}
		if isFenced && onlyDenied(op) {
			r.find("phantom", "operation %d was only fenced or refused, and is version %d of the thread", op.ID, number)
		}
	}
}

func onlyDenied(op Op) bool {
	for _, attempt := range op.Attempts {
		if !wroteNothing(attempt) && attempt.Outcome != "fenced" {
			return false
		}
	}
	return true
}

// setAside names the orphans of a machine that have this very version among their own.
func (r *Rules) setAside(attempt Attempt, token string) []string {
	places, seen := []string(nil), map[string]bool{}
	for _, orphan := range r.orphans {
		for _, version := range orphan.Versions {
			is := version.Version == attempt.Version && version.Digest == attempt.Digest && version.Token == token
			if is && orphan.Machine == attempt.Machine && !seen[orphan.Name] {
				seen[orphan.Name] = true
				places = append(places, orphan.Name)
			}
		}
	}
	return places
}

// isExcused says whether the machine lost its copy after it answered.
func (r *Rules) isExcused(attempt Attempt) bool {
	for _, loss := range r.losses {
		if loss.Machine == attempt.Machine && (loss.Thread == "" || loss.Thread == r.thread) && attempt.Call <= loss.Time {
			return true
		}
	}
	return false
}

// shown: a state that is not in the thread may be shown only while the archive does not have it.
func (r *Rules) shown() {
	for _, op := range r.ops {
		for _, attempt := range op.Attempts {
			if op.Do != "read" && op.Do != "look" || attempt.Outcome != "ok" || r.line.Has(attempt.Version, attempt.Digest) {
				continue
			}
			isArchived := attempt.Sequence <= attempt.ArchivedSequence
			if r.setup.Promise == "set back" { // its owner may show what was lost, and say that it is not archived
				isArchived = isArchived && attempt.Call > r.setBack
			}
			if r.setup.Promise == "committed" || isArchived {
				r.find("fork", "operation %d read version %d %.8s at %s, which is not in the thread at the end",
					op.ID, attempt.Version, attempt.Digest, attempt.Machine)
			}
		}
	}
}
