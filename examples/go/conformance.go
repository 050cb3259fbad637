// Procedures of `stateward conformance`, which docs/protocol.md describes.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	pb "github.com/stateward/stateward/gen/go/stateward/v1"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/status"
)

const noProcedure = 77

func conform(t *thread, scenario string) {
	procedure, _, _ := strings.Cut(scenario, "/")
	run := map[string]func(*thread) error{
		"advance": advance, "since": since, "splice": splice, "count": countLarge, "watch": watchAll,
		"write-blob": writeLarge, "read-blob": readLarge, "writer": writeFour, "lease": work, "guard": guarded,
		"effect": payOnce, "ask": ask, "answer": sayYes, "record": increase, "records": listAll,
	}[procedure]
	if run == nil {
		os.Exit(noProcedure)
	}
	if err := run(t); err != nil {
		reason, _ := explain(err)
		if reason == "" {
			reason = code.Code(status.Code(err)).String()
		}
		must(0, t.put(set("error", text(reason))))
	}
}

// Saves the digest of the state on top of it, again and again until there is no conflict.
func advance(t *thread) error {
	for {
		read, err := t.hydrate()
		if hasReason(err, "THREAD_NOT_FOUND") {
			read, t.version, t.digest, t.uid = &head{State: &pb.State{}}, 0, nil, ""
		} else if err != nil {
			return err
		}
		if err = t.saveDigest(read); !hasReason(err, "VERSION_MISMATCH") {
			return err
		}
	}
}

func since(t *thread) error {
	known, err := t.hydrate()
	if err != nil {
		return err
	}
	read, err := t.hydrateSince(known)
	if err != nil {
		return err
	}
	return t.saveDigest(read)
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
	_, err = t.save(t.next(&pb.Edit{Edit: &pb.Edit_SpliceSlot{SpliceSlot: edit}}))
	return err
}

func countLarge(t *thread) error {
	addition := &pb.AddNumber{Slot: "count", Delta: 1<<53 + 1}
	added, err := t.save(anyVersion(t.next(&pb.Edit{Edit: &pb.Edit_AddNumber{AddNumber: addition}})))
	if err != nil {
		return err
	}
	return t.put(set("seen", text(strconv.FormatInt(added.Numbers["count"], 10))))
}

func watchAll(t *thread) error {
	var seen []string
	err := t.watch(0, func(event *pb.JournalEvent) bool {
		seen = append(seen, strconv.FormatInt(event.Sequence, 10))
		return event.GetCheckpoint().GetStatus() != pb.WorkStatus_WORK_STATUS_COMPLETED
	})
	if err != nil {
		return err
	}
	return t.put(set("seen", text(strings.Join(seen, ","))))
}

func writeLarge(t *thread) error {
	data := make([]byte, 2_500_000)
	for place := range data {
		data[place] = byte(place % 251)
	}
	blob, err := t.writeBlob(data)
	if err != nil {
		return err
	}
	value := &pb.Value{MediaType: "application/octet-stream", Content: &pb.Value_Blob{Blob: blob}}
	return t.put(set("file", value))
}

func readLarge(t *thread) error {
	read, err := t.hydrate()
	if err != nil {
		return err
	}
	data, err := t.readBlob(read.Slots["file"].GetBlob())
	if err != nil {
		return err
	}
	_, err = t.save(t.next(set("seen", text(fmt.Sprintf("%x", sha256.Sum256(data))))))
	return err
}

func writeFour(t *thread) error {
	frames := make([]*pb.Edit, 4)
	for number := range frames {
		frames[number] = set("seen", text(strconv.Itoa(number+1)))
	}
	_, _, err := t.stream(frames...)
	return err
}

func work(t *thread) error {
	err := t.holding(t.name, time.Second, func(held lease) error {
		time.Sleep(2 * time.Second)
		if held.lost() != nil {
			return nil
		}
		save := anyVersion(t.next(set("seen", text("held"))))
		save.Options.LeaseToken = held.token
		_, err := t.save(save)
		return err
	})
	if hasReason(err, "LEASE_HELD") {
		return nil // another holder has the thread: nothing is saved any more
	}
	return err
}

func guarded(t *thread) error {
	lock := "locks/" + t.name
	return t.holding(lock, 30*time.Second, func(held lease) error {
		save := anyVersion(t.next(set("seen", text("guarded"))))
		save.Guard = &pb.LeaseGuard{Thread: lock, Token: held.token, ExpectedUid: held.uid}
		_, err := t.save(save)
		return err
	})
}

func payOnce(t *thread) error {
	receipt, _, err := t.effect("", "pay", effect{
		call:  func(string) *pb.Value { return text("paid") },
		check: func(string) *pb.Value { return text("found") },
	})
	if err != nil {
		return err
	}
	return t.put(set("seen", text(string(receipt.GetData()))))
}

func ask(t *thread) error {
	if _, err := t.hydrate(); err != nil {
		return err
	}
	question := t.next()
	question.Status, question.WaitId = pb.WorkStatus_WORK_STATUS_WAITING, "budget"
	question.Question = &pb.Question{Prompt: "May it cost 300?"}
	if _, err := t.save(question); err != nil {
		return err
	}
	for {
		read, err := t.hydrate()
		if err != nil {
			return err
		}
		for _, signal := range read.signals {
			if signal.WaitId == "budget" {
				use := t.next(set("seen", text(string(signal.Payload.GetData()))))
				use.AckSignals = []string{signal.SignalId} // in the save that uses the answer
				_, err = t.save(use)
				return err
			}
		}
		time.Sleep(minPause)
	}
}

func sayYes(t *thread) error {
	_, err := call(t.SendSignal, &pb.SendSignalRequest{
		Thread: t.name, Options: newOptions(), Name: "answer", WaitId: "budget", Payload: text("yes"),
	})
	return err
}

func increase(t *thread) error {
	for {
		found, err := t.getRecords("count")
		if err != nil {
			return err
		}
		number, _ := strconv.Atoi(string(found["count"].GetValue().GetData())) // 0 if there is no record
		err = t.putRecord("count", text(strconv.Itoa(number+1)), found["count"].GetRevision())
		if !hasReason(err, "RECORD_CONFLICT") {
			return err
		}
	}
}

func listAll(t *thread) error {
	keys, err := t.listKeys("users/")
	if err != nil {
		return err
	}
	found, err := t.getRecords(keys...)
	if err != nil {
		return err
	}
	var seen []string
	for _, key := range keys {
		if record := found[key]; record != nil {
			seen = append(seen, fmt.Sprintf("%s=%s", key, record.Value.GetData()))
		}
	}
	return t.put(set("seen", text(strings.Join(seen, ","))))
}

func (t *thread) saveDigest(read *head) error {
	_, err := t.save(t.next(set("seen", text(fmt.Sprintf("%x", sha256.Sum256(canonical(read.State)))))))
	return err
}

// Saves an edit on top of any version.
func (t *thread) put(edit *pb.Edit) error {
	_, err := t.save(anyVersion(t.next(edit)))
	return err
}

func anyVersion(request *pb.SaveRequest) *pb.SaveRequest {
	request.Options.ExpectedVersion, request.Options.ExpectedDigest = nil, nil
	return request
}
