package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// A history is a file of JSON lines. The driver writes what was asked, what was answered, and what was found at the
// end. It judges nothing.

// Setup is the first line: what the daemons of this history promise.
type Setup struct {
	Seed int64 `json:"seed"`
	// "committed": one daemon, and every answered save is in the thread for ever.
	// "archived": several daemons on one bucket; only ARCHIVED saves survive a takeover.
	// "set back": somebody put an older copy of the bucket in its place; versions are lost, and none is mixed.
	Promise string `json:"promise"`
	// How old a state the daemon may show that was replaced as owner and has not noticed; also while its bucket is away.
	StalenessNs        int64 `json:"staleness_ns"`
	StalenessInStormNs int64 `json:"staleness_in_storm_ns"`
	// True if nothing happens that allows a takeover: then no save is fenced, and no thread has an orphan.
	Calm bool `json:"calm"`
}

// Attempt is one call: a save is sent again with its request id until somebody gives up.
type Attempt struct {
	Machine string `json:"machine"`
	// Counts the losses of this machine's copy: a new disk, or a deletion of the copy. -1: there was one in the call.
	Disk   int   `json:"disk"`
	Call   int64 `json:"call"`
	Return int64 `json:"return"`
	// True if the machine's requests to its bucket met something bad in this call or shortly before.
	Stormy bool `json:"stormy"`
	// "ok", "mismatch", "absent", "fenced", "refused" (nothing was written), "unknown" or "broken".
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	// Of "ok": the version that was written or read. Of "mismatch": the head instead of the expected one.
	Version          int    `json:"version"`
	Digest           string `json:"digest"`
	Durability       string `json:"durability"`
	Sequence         int64  `json:"sequence"`
	ArchivedSequence int64  `json:"archived_sequence"`
	Owner            string `json:"owner"`
	// Of a read: the tokens in the log.
	Log []string `json:"log"`
}

// Op is one operation of a client on a thread.
type Op struct {
	ID     int    `json:"id"`
	Client int    `json:"client"`
	Thread string `json:"thread"`
	// "append" (no expectation), "save" (compare-and-swap), "read" (the head), "look" (an older version),
	// "wait" (WaitDurable: an "ok" says that this version and digest is archived).
	Do              string    `json:"do"`
	Token           string    `json:"token"`
	ExpectedVersion int       `json:"expected_version"`
	ExpectedDigest  string    `json:"expected_digest"`
	Attempts        []Attempt `json:"attempts"`
}

// Version is one version as a machine shows it at the end.
type Version struct {
	Version int    `json:"version"`
	Digest  string `json:"digest"`
	// What this version appended.
	Token string `json:"token"`
	// The whole log, where it was read.
	Log []string `json:"log"`
}

// Final is what a machine shows of a thread when everything is quiet. Fresh: a machine that was never there before.
type Final struct {
	Machine  string    `json:"machine"`
	Fresh    bool      `json:"fresh"`
	Thread   string    `json:"thread"`
	Error    string    `json:"error"`
	Version  int       `json:"version"`
	Digest   string    `json:"digest"`
	Log      []string  `json:"log"`
	Versions []Version `json:"versions"`
}

// Orphan is one reading of a thread that a machine set aside: its own versions, which are not in the thread.
type Orphan struct {
	Machine string `json:"machine"`
	Thread  string `json:"thread"`
	Name    string `json:"name"`
	// When it was read, in words: one orphan is read several times.
	Reading  string    `json:"reading"`
	Error    string    `json:"error"`
	Versions []Version `json:"versions"`
}

// Loss says that a machine lost its copy of a thread (empty: of all threads) and what it had not archived.
type Loss struct {
	Machine string `json:"machine"`
	Thread  string `json:"thread"`
	Time    int64  `json:"time"`
}

// Finding is what Verify of a daemon or an archive reports, or something that the driver could not do.
type Finding struct {
	Machine string `json:"machine"`
	Thread  string `json:"thread"`
	Text    string `json:"text"`
}

// History is a whole file.
type History struct {
	Setup    Setup
	Ops      []Op
	Finals   []Final
	Orphans  []Orphan
	Losses   []Loss
	Findings []Finding
	// When the bucket was set back for the last time.
	SetBack int64
}

// ReadHistory reads a file. A line of an unknown kind is for people.
func ReadHistory(path string) (*History, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	history, lines := &History{}, bufio.NewReaderSize(file, 1<<20)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if bad := history.add(line); bad != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, number, bad)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if history.Setup.Promise == "" {
		return nil, fmt.Errorf("%s: no line says what is promised", path)
	}
	return history, nil
}

func (h *History) add(line []byte) error {
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(line, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "setup":
		return json.Unmarshal(line, &h.Setup)
	case "op":
		return appended(line, &h.Ops)
	case "final":
		return appended(line, &h.Finals)
	case "orphan":
		return appended(line, &h.Orphans)
	case "loss":
		return appended(line, &h.Losses)
	case "set back":
		var back struct {
			Time int64 `json:"time"`
		}
		err := json.Unmarshal(line, &back)
		h.SetBack = max(h.SetBack, back.Time)
		return err
	case "finding":
		return appended(line, &h.Findings)
	}
	return nil
}

func appended[T any](line []byte, to *[]T) error {
	var item T
	err := json.Unmarshal(line, &item)
	*to = append(*to, item)
	return err
}
