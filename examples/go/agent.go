// An agent that keeps its state in Stateward. Its steps are those of ../agent.md.
package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"example.com/load"
	pb "github.com/stateward/stateward/gen/go/stateward/v1"
	"google.golang.org/protobuf/proto"
)

func main() {
	log.SetFlags(0)
	phases := map[string]func(*thread){"begin": begin, "answer": answer, "resume": resume, "count": count}
	phase, target := strings.Join(os.Args[1:], " "), os.Getenv("STATEWARD_TARGET")
	if phase == "load" { // of `make bench`
		must(0, load.Run(loads))
	} else if run := phases[phase]; run != nil {
		run(open(target, cmp.Or(os.Getenv("STATEWARD_THREAD"), "example-go")))
	} else if strings.Contains(phase, "/") { // a scenario of `stateward conformance`
		conform(open(target, "conformance/"+phase), phase)
	} else {
		log.Fatal("usage: agent begin|answer|resume|count")
	}
}

func begin(t *thread) {
	fmt.Println("created version", must(t.save(t.next(set("goal", text("a room in Paris"))))).Version)
	fmt.Println("saved version", must(t.save(t.next(add("messages", text("hello"))))).Version)

	late := t.next(add("messages", text("too late")))
	late.Options.ExpectedVersion, late.Options.ExpectedDigest = proto.Int64(1), nil
	_, err := t.save(late)
	reason, facts := explain(err)
	fmt.Printf("conflict %s at version %s\n", reason, facts["current_version"])

	// A conflict is resolved on the newest state: read it, make the change again, save again.
	known := len(must(t.hydrate()).Logs["messages"].Entries)
	again := t.next(add("messages", text(fmt.Sprint("message ", known))))
	fmt.Println("resolved as version", must(t.save(again)).Version)
	if replay := must(t.save(again)); replay.Receipt.GetReplayed() {
		fmt.Println("replayed version", replay.Version)
	}

	must(0, t.holding(t.name, time.Minute, func(held lease) error {
		_, err := t.save(t.next(set("lease", text("free"))))
		reason, _ := explain(err)
		fmt.Println("refused", reason)
		save := t.next(set("lease", text("held")))
		save.Options.LeaseToken = held.token
		fmt.Println("leased version", must(t.save(save)).Version)
		return nil
	}))

	frames := make([]*pb.Edit, 10)
	for number := range frames {
		frames[number] = add("messages", text(fmt.Sprint("frame ", number+1)))
	}
	first, last, err := t.stream(frames...)
	must(0, err)
	fmt.Printf("streamed versions %d to %d\n", first, last)

	pay(t)

	document, pages := new(bytes.Buffer), make([]*pb.Value, 32)
	for number := range 1 << 19 {
		fmt.Fprintf(document, "%08d", number)
	}
	for number := range pages {
		pages[number] = binary([]byte(strings.Repeat(fmt.Sprintf("%08d", number), 8192)))
	}
	large := must(t.save(t.next(set("document", binary(document.Bytes())), add("pages", pages...))))
	fmt.Printf("wrote %d bytes as version %d\n", document.Len()+len(pages)*8*8192, large.Version)

	ask := t.next()
	ask.Status, ask.WaitId = pb.WorkStatus_WORK_STATUS_WAITING, "approve-room"
	ask.Question = &pb.Question{Prompt: "Book the room?"}
	fmt.Println("waiting at version", must(t.save(ask)).Version)
	select {} // until it is killed
}

// Pays unless an earlier run has paid.
func pay(t *thread) {
	receipt, state, err := t.effect("booking", "pay", effect{
		call:  func(idempotencyKey string) *pb.Value { return text(bank()) }, // here an agent calls its bank
		check: func(idempotencyKey string) *pb.Value { return nil },          // and here it asks whether it has paid
	})
	must(0, err)
	if state == pb.EffectState_EFFECT_STATE_NEW {
		fmt.Println("effect NEW: paid")
	} else {
		fmt.Printf("effect %s: %s\n", strings.TrimPrefix(state.String(), "EFFECT_STATE_"), receipt.GetData())
	}
}

func bank() string {
	if slow, is := os.LookupEnv("STATEWARD_BANK"); is {
		return string(must(os.ReadFile(slow)))
	}
	return "receipt 17"
}

func answer(t *thread) {
	must(call(t.SendSignal, &pb.SendSignalRequest{
		Thread: t.name, Options: newOptions(),
		Name: "approve", Payload: text("yes"), Sender: "ana", WaitId: "approve-room",
	}))
	fmt.Println("answered approve-room")
}

func resume(t *thread) {
	head := must(t.hydrate())
	all := head.Slots["document"].GetData()
	for _, page := range head.Logs["pages"].Entries {
		all = append(all, page.GetData()...)
	}
	fmt.Printf("hydrated version %d in %d pages: %d bytes, sha256 %x\n", t.version, head.pages, len(all), sha256.Sum256(all))
	pay(t)
	booked := t.next(add("messages", text("booked")))
	booked.Status = pb.WorkStatus_WORK_STATUS_COMPLETED
	for _, signal := range head.signals {
		if signal.WaitId == "approve-room" {
			fmt.Printf("answer %s from %s\n", signal.Payload.GetData(), signal.Sender)
			booked.AckSignals = append(booked.AckSignals, signal.SignalId)
		}
	}
	fmt.Println("completed version", must(t.save(booked)).Version)
}

func count(t *thread) {
	replayed, last := 0, &pb.SaveResponse{}
	for number := 1; number <= 400; number++ {
		addition := t.next(&pb.Edit{Edit: &pb.Edit_AddNumber{AddNumber: &pb.AddNumber{Slot: "count", Delta: 1}}})
		addition.Thread, addition.Options = t.name+"-count", newOptions()
		if last = must(call(t.Save, addition)); last.Receipt.GetReplayed() {
			replayed++
		}
		if number%100 == 0 {
			fmt.Println("saved", number)
		}
	}
	fmt.Printf("counted %d, replayed %d\n", last.Numbers["count"], replayed)
}
