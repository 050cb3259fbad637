// Procedures of `stateward conformance`, which docs/protocol.md describes.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	pb "github.com/stateward/stateward/gen/go/stateward/v1"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	noProcedure = 77
	attemptTime = 5 * time.Second
	patience    = 20 * time.Second
)

func conform(t *thread, scenario string) {
	procedure, _, _ := strings.Cut(scenario, "/")
	procedures := map[string]func(*thread) error{"advance": advance, "count": countLarge, "splice": splice}
	if procedures[procedure] == nil {
		os.Exit(noProcedure)
	}
	if err := procedures[procedure](t); err != nil {
		reason, _ := explain(err)
		if reason == "" {
			reason = code.Code(status.Code(err)).String()
		}
		must(t.save(anyVersion(t.next(set("error", text(reason))))))
	}
}

// Saves the digest of the state on top of it, again and again until there is no conflict.
func advance(t *thread) error {
	for {
		read, err := t.hydrate()
		if reason, _ := explain(err); reason == "THREAD_NOT_FOUND" {
			read, t.version, t.digest = &head{State: &pb.State{}}, 0, nil
		} else if err != nil {
			return err
		}
		_, err = retry(t, t.next(set("seen", text(fmt.Sprintf("%x", sha256.Sum256(canonical(read.State)))))))
		if reason, _ := explain(err); reason != "VERSION_MISMATCH" {
			return err
		}
	}
}

func countLarge(t *thread) error {
	addition := &pb.AddNumber{Slot: "count", Delta: 1<<53 + 1}
	added, err := retry(t, anyVersion(t.next(&pb.Edit{Edit: &pb.Edit_AddNumber{AddNumber: addition}})))
	if err != nil {
		return err
	}
	_, err = retry(t, anyVersion(t.next(set("seen", text(strconv.FormatInt(added.Numbers["count"], 10))))))
	return err
}

func splice(t *thread) error {
	read, err := t.hydrate()
	if err != nil {
		return err
	}
	before := read.Slots["text"].GetData()
	sum := sha256.Sum256(before)
	change := &pb.Splice{Offset: int64(bytes.Index(before, []byte("Paris"))), Delete: 5, Insert: []byte("Rome")}
	edit := &pb.SpliceSlot{Slot: "text", BaseSha256: sum[:], Splices: []*pb.Splice{change}}
	_, err = retry(t, t.next(&pb.Edit{Edit: &pb.Edit_SpliceSlot{SpliceSlot: edit}}))
	return err
}

func anyVersion(request *pb.SaveRequest) *pb.SaveRequest {
	request.ExpectedVersion, request.ExpectedDigest = nil, nil
	return request
}

// Saves, beyond the retries of the service config: an attempt without an answer is repeated, and the client waits until
// another sidecar gives the thread up.
func retry(t *thread, request *pb.SaveRequest) (*pb.SaveResponse, error) {
	for end := time.Now().Add(patience); ; {
		attempt, cancel := context.WithTimeout(ctx, attemptTime)
		saved, err := t.Save(attempt, request)
		cancel()
		pause := time.Duration(0)
		reason, facts := explain(err)
		if reason == "NOT_OWNER" {
			seconds, absent := strconv.ParseFloat(facts["free_in_s"], 64)
			if absent != nil {
				return nil, err
			}
			pause = time.Duration(seconds * float64(time.Second))
		} else if status.Code(err) != codes.DeadlineExceeded {
			return saved, err
		}
		if time.Now().Add(pause).After(end) {
			return nil, err
		}
		log.Printf("again in %s: %s", pause, err)
		time.Sleep(pause)
	}
}
