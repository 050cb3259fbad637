// What every client needs beside the generated stubs: a channel, request ids, the reasons of errors, and pages.
package main

import (
	"context"
	"crypto/rand"
	"log"
	"maps"
	"os"
	"time"

	pb "github.com/stateward/stateward/gen/go/stateward/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A thread as one agent sees it: the daemon's services, and the version that the agent builds on.
type thread struct {
	pb.CheckpointServiceClient
	pb.EffectServiceClient
	pb.LeaseServiceClient
	pb.SignalServiceClient
	pb.WriterServiceClient
	name    string
	holder  *pb.Holder
	version int64
	digest  []byte
}

var ctx = context.Background()

// Opens a channel with the retry policy of the contract. It connects with the first call.
func open(target, name string) *thread {
	policy := must(os.ReadFile("proto/service_config.json"))
	reconnect := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second}
	channel := must(grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(string(policy)),
		// By default, gRPC retries no request above 256 KiB, takes no answer above 4 MiB, and waits for up to two minutes
		// before it connects again.
		grpc.WithDefaultCallOptions(grpc.MaxRetryRPCBufferSize(64<<20), grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect})))
	return &thread{
		pb.NewCheckpointServiceClient(channel), pb.NewEffectServiceClient(channel), pb.NewLeaseServiceClient(channel),
		pb.NewSignalServiceClient(channel), pb.NewWriterServiceClient(channel),
		name, &pb.Holder{Name: "agent", Incarnation: newID()}, 0, nil}
}

// Makes a request id. All attempts of a request have the same one.
func newID() string { return rand.Text() }

// Makes a request with these edits, which the daemon saves only on top of the version that the agent knows.
func (t *thread) next(edits ...*pb.Edit) *pb.SaveRequest {
	return &pb.SaveRequest{
		Thread: t.name, RequestId: newID(), ExpectedVersion: proto.Int64(t.version), ExpectedDigest: t.digest,
		Content: &pb.SaveRequest_Diff{Diff: &pb.Diff{Edits: edits}},
	}
}

// Saves, and remembers the new head.
func (t *thread) save(request *pb.SaveRequest) (*pb.SaveResponse, error) {
	saved, err := t.Save(ctx, request)
	if err == nil {
		t.version, t.digest = saved.Version, saved.Digest
	}
	return saved, err
}

// Returns why the daemon refused a call, and the facts that error_reason.proto names for the reason. The reason is
// empty if the error comes from gRPC itself.
func explain(err error) (string, map[string]string) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "stateward" {
			return info.Reason, info.Metadata
		}
	}
	return "", nil
}

type head struct {
	*pb.State
	signals []*pb.Signal
	pages   int
}

// Reads the head, joins its pages, and remembers its version.
func (t *thread) hydrate() (*head, error) {
	read := &head{State: &pb.State{Slots: map[string]*pb.Value{}, Logs: map[string]*pb.Log{}}}
	request := &pb.HydrateRequest{Thread: t.name, IncludeSignals: true}
	var pieces []byte
	for {
		page, err := t.Hydrate(ctx, request)
		if err != nil {
			return nil, err
		}
		read.pages, read.signals = read.pages+1, append(read.signals, page.Signals...)
		maps.Copy(read.Slots, page.State.GetSlots())
		for name, part := range page.State.GetLogs() {
			if read.Logs[name] == nil {
				read.Logs[name] = part
			} else {
				read.Logs[name].Entries = append(read.Logs[name].Entries, part.Entries...)
			}
		}
		if piece := page.Chunk; piece != nil { // of a value that is larger than a page
			pieces = append(pieces, piece.Data...)
			if int64(len(pieces)) == piece.SizeBytes {
				value := &pb.Value{MediaType: piece.MediaType, Content: &pb.Value_Data{Data: pieces}}
				if name := piece.GetLog(); name != "" { // its page has shown the log, without this entry
					read.Logs[name].Entries = append(read.Logs[name].Entries, value)
				} else {
					read.Slots[piece.GetSlot()] = value
				}
				pieces = nil
			}
		}
		if request.PageToken = page.NextPageToken; request.PageToken == "" {
			t.version, t.digest = page.Checkpoint.Version, page.Checkpoint.Digest
			return read, nil
		}
	}
}

// Ends the program if there is an error.
func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func set(slot string, value *pb.Value) *pb.Edit {
	return &pb.Edit{Edit: &pb.Edit_SetSlot{SetSlot: &pb.SetSlot{Slot: slot, Value: value}}}
}

func add(log string, entries ...*pb.Value) *pb.Edit {
	return &pb.Edit{Edit: &pb.Edit_Append{Append: &pb.Append{Log: log, Entries: entries}}}
}

func text(words string) *pb.Value {
	return &pb.Value{MediaType: "text/plain", Content: &pb.Value_Data{Data: []byte(words)}}
}

func binary(data []byte) *pb.Value {
	return &pb.Value{MediaType: "application/octet-stream", Content: &pb.Value_Data{Data: data}}
}
