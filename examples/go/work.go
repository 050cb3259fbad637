// What agents do together: leases that are renewed, tools that are called once, and records.
package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	pb "github.com/stateward/stateward/gen/go/stateward/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// A claim lives so long unless it is renewed: as long as others wait if this agent dies.
const claimTerm = 10 * time.Second

// A lease that is held.
type lease struct {
	token int64
	uid   string       // of the thread: the next thread of its name may give out the same token
	lost  func() error // why it is lost, as far as this process knows; nil = it is not known to be
}

// Holds the lease of a thread while the work runs, and renews it three times in each term. Returns LEASE_HELD if it was
// lost: the work must then save nothing any more.
func (t *thread) holding(name string, term time.Duration, work func(lease) error) error {
	acquired, err := call(t.AcquireLease, &pb.AcquireLeaseRequest{
		Thread: name, Options: newOptions(), Holder: t.holder, Term: durationpb.New(term),
	})
	if err != nil {
		return err
	}
	token, uid := acquired.Lease.Token, acquired.Receipt.GetUid()
	working, end := context.WithCancelCause(ctx)
	held := lease{token, uid, func() error { return context.Cause(working) }}
	go func() {
		for tick := time.Tick(term / 3); ; {
			select {
			case <-working.Done():
				return
			case <-tick:
				renewal := &pb.RenewLeaseRequest{Thread: name, LeaseToken: token, ExpectedUid: uid}
				if _, err := call(t.RenewLease, renewal); err != nil {
					end(err)
				}
			}
		}
	}()
	err = work(held)
	if lost := held.lost(); lost != nil {
		return lost
	}
	end(nil)
	release := &pb.ReleaseLeaseRequest{Thread: name, Options: &pb.WriteOptions{LeaseToken: token, ExpectedUid: uid}}
	if _, released := call(t.ReleaseLease, release); err == nil {
		err = released
	}
	return err
}

// How a tool is called. Both get the idempotency key, which is the same for all attempts. `check` finds out what became
// of a call whose agent died, and returns its result, or nil if the tool has done nothing.
type effect struct {
	call, check func(idempotencyKey string) *pb.Value
}

// Calls a tool at most once. Returns the result, and the state in which the effect was: NEW or UNCERTAIN if this call
// has recorded the result, and DONE if an earlier one had.
func (t *thread) effect(anchor, key string, tool effect) (*pb.Value, pb.EffectState, error) {
	begun, err := t.begin(anchor, key)
	for err == nil && begun.State == pb.EffectState_EFFECT_STATE_IN_PROGRESS {
		time.Sleep(min(begun.RetryAfter.AsDuration(), maxPause))
		begun, err = t.begin(anchor, key)
	}
	if err != nil {
		return nil, 0, err
	}
	if begun.ClaimToken == 0 { // DONE or FAILED
		if begun.State == pb.EffectState_EFFECT_STATE_FAILED {
			err = fmt.Errorf("%s has failed: %s", key, begun.Effect.Detail)
		}
		return begun.Effect.Effect.GetValue(), begun.State, err
	}
	claim := &pb.CompleteEffectRequest{
		Thread: t.name, Options: &pb.WriteOptions{ExpectedUid: begun.Receipt.GetUid()},
		Anchor: anchor, Key: key, ClaimToken: begun.ClaimToken,
	}
	hold, end := t.keep(claim)
	defer end()
	if required := begun.RequiredDurability; begun.Receipt.GetDurability() < required {
		// A lost machine would lose the claim, and the tool would be called again.
		_, err = call(t.WaitDurable, &pb.WaitDurableRequest{
			Thread: t.name, Receipt: begun.Receipt, Durability: required,
		})
		if err != nil {
			return nil, 0, err
		}
	}
	var result *pb.Value
	if begun.State == pb.EffectState_EFFECT_STATE_UNCERTAIN {
		result = tool.check(begun.IdempotencyKey)
	}
	if result == nil {
		if err = hold(); err != nil {
			return nil, 0, err
		}
		result = tool.call(begun.IdempotencyKey)
	}
	end()
	claim.State, claim.Value = pb.EffectState_EFFECT_STATE_DONE, result
	_, err = call(t.CompleteEffect, claim)
	return result, begun.State, err
}

// Renews a claim three times in each term, until `end`. A renewal that fails is made again with the next one, unless
// another agent has the claim. `hold` returns CLAIM_LOST if the claim is lost: the tool must then not be called.
func (t *thread) keep(claim *pb.CompleteEffectRequest) (hold func() error, end func()) {
	renewal := &pb.RenewEffectRequest{
		Thread: claim.Thread, Anchor: claim.Anchor, Key: claim.Key, ClaimToken: claim.ClaimToken,
		ExpectedUid: claim.Options.ExpectedUid,
	}
	var renewed atomic.Pointer[time.Time] // when the last renewal was sent that succeeded
	begun := time.Now()
	renewed.Store(&begun)
	renew := func() error {
		sent := time.Now()
		_, err := call(t.RenewEffect, renewal)
		if reason, _ := explain(err); reason == "CLAIM_LOST" {
			sent = time.Time{}
		}
		if err == nil || sent.IsZero() {
			renewed.Store(&sent)
		}
		return err
	}
	working, end := context.WithCancel(ctx)
	go func() {
		for tick := time.Tick(claimTerm / 3); !renewed.Load().IsZero(); {
			select {
			case <-working.Done():
				return
			case <-tick:
				renew()
			}
		}
	}()
	hold = func() error {
		if time.Since(*renewed.Load()) < claimTerm/2 {
			return nil
		}
		return renew()
	}
	return hold, end
}

// Claims an effect. Each time it is a new request: with the same id the daemon would give the same answer for ever.
func (t *thread) begin(anchor, key string) (*pb.BeginEffectResponse, error) {
	return call(t.BeginEffect, &pb.BeginEffectRequest{
		Thread: t.name, Options: newOptions(),
		Anchor: anchor, Key: key, Holder: t.holder, Term: durationpb.New(claimTerm),
	})
}

// Writes a record, if it has the expected revision; 0 = it must not exist.
func (t *thread) putRecord(key string, value *pb.Value, revision int64) error {
	write := &pb.RecordWrite{
		Key: key, Change: &pb.RecordWrite_Value{Value: value}, ExpectedRevision: proto.Int64(revision),
	}
	request := &pb.PutRecordsRequest{Thread: t.name, Options: newOptions(), Writes: []*pb.RecordWrite{write}}
	_, err := call(t.PutRecords, request)
	return err
}

// Returns the records with these keys that exist, however many answers they take.
func (t *thread) getRecords(keys ...string) (map[string]*pb.StoredRecord, error) {
	found := map[string]*pb.StoredRecord{}
	for len(keys) > 0 {
		answer, err := call(t.GetRecords, &pb.GetRecordsRequest{Thread: t.name, Keys: keys[:min(1000, len(keys))]})
		if err != nil {
			return nil, err
		}
		for _, record := range answer.Records {
			found[record.Key] = record
		}
		keys = append(answer.Rest, keys[min(1000, len(keys)):]...)
	}
	return found, nil
}

// Lists the keys with a prefix, in all pages. A page may be empty and not the last one.
func (t *thread) listKeys(prefix string) (keys []string, err error) {
	request := &pb.ListRecordsRequest{Thread: t.name, Prefix: prefix, WithoutValues: true}
	for {
		page, err := call(t.ListRecords, request)
		if err != nil {
			return nil, err
		}
		for _, record := range page.Records {
			keys = append(keys, record.Key)
		}
		if request.PageToken = page.NextPageToken; request.PageToken == "" {
			return keys, nil
		}
	}
}
