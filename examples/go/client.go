// What every client needs beside the generated stubs: a channel, request ids, and pages.
package main

import (
	"context"
	"crypto/rand"
	"log"
	"maps"
	"os"
	"time"

	pb "github.com/stateward/stateward/gen/go/stateward/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/protobuf/proto"
)

// A thread as one agent sees it: the daemon's services, and the version that the agent builds on.
type thread struct {
	pb.BlobServiceClient
	pb.CheckpointServiceClient
	pb.EffectServiceClient
	pb.LeaseServiceClient
	pb.RecordServiceClient
	pb.SignalServiceClient
	pb.ThreadServiceClient
	pb.WriterServiceClient
	name    string
	holder  *pb.Holder
	version int64
	digest  []byte
	uid     string // of the thread that was read or saved: a later thread of the same name has another one
}

var ctx = context.Background()

// Opens a channel with the retry policy of the contract. It connects with the first call.
func open(target, name string) *thread {
	policy := must(os.ReadFile("proto/service_config.json"))
	reconnect := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second}
	channel := must(grpc.NewClient(target,
		grpc.WithTransportCredentials(transport(target)),
		grpc.WithDefaultServiceConfig(string(policy)),
		// By default, gRPC retries no request above 256 KiB, takes no answer above 4 MiB, and waits for up to two minutes
		// before it connects again.
		grpc.WithDefaultCallOptions(grpc.MaxRetryRPCBufferSize(64<<20), grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect})))
	return &thread{
		pb.NewBlobServiceClient(channel), pb.NewCheckpointServiceClient(channel), pb.NewEffectServiceClient(channel),
		pb.NewLeaseServiceClient(channel), pb.NewRecordServiceClient(channel), pb.NewSignalServiceClient(channel),
		pb.NewThreadServiceClient(channel), pb.NewWriterServiceClient(channel),
		name, &pb.Holder{Name: "agent", Incarnation: newID()}, 0, nil, ""}
}

// Makes a request id. All attempts of a request have the same one.
func newID() string { return rand.Text() }

// Makes the options of a write that is safe to repeat.
func newOptions() *pb.WriteOptions { return &pb.WriteOptions{RequestId: newID()} }

// Makes a request with these edits, which the daemon saves only on top of the version that the agent knows, and only to
// the thread that it knows: if that was deleted, the request does not bring it back.
func (t *thread) next(edits ...*pb.Edit) *pb.SaveRequest {
	options := newOptions()
	options.ExpectedVersion, options.ExpectedDigest = proto.Int64(t.version), t.digest
	options.ExpectedUid = t.uid
	content := &pb.SaveRequest_Diff{Diff: &pb.Diff{Edits: edits}}
	return &pb.SaveRequest{Thread: t.name, Options: options, Content: content}
}

// Saves, and remembers the new head.
func (t *thread) save(request *pb.SaveRequest) (*pb.SaveResponse, error) {
	saved, err := call(t.Save, request)
	if err == nil {
		t.remember(saved)
	}
	return saved, err
}

// Builds on this version from now on.
func (t *thread) remember(saved *pb.SaveResponse) {
	t.version, t.digest, t.uid = saved.Version, saved.Receipt.GetDigest(), saved.Receipt.GetUid()
}

// A state that was read, the signals that wait for the agent, and the number of pages.
type head struct {
	*pb.State
	version int64
	digest  []byte
	signals []*pb.Signal
	pages   int
}

// Reads the head, joins its pages, and remembers its version.
func (t *thread) hydrate() (*head, error) { return t.hydrateSince(&head{}) }

// Reads what has changed since a state that was read whole, and returns the state of the head.
func (t *thread) hydrateSince(known *head) (*head, error) {
	read := &head{State: &pb.State{Slots: map[string]*pb.Value{}, Logs: map[string]*pb.Log{}}}
	request := &pb.HydrateRequest{
		Thread: t.name, IncludeSignals: true, KnownVersion: known.version, KnownDigest: known.digest,
	}
	var pieces []byte
	for {
		page, err := call(t.Hydrate, request)
		if err != nil {
			return nil, err
		}
		if read.pages == 0 && page.BaseVersion != 0 { // else the answer is the whole state
			proto.Merge(read.State, known.State)
		}
		for _, name := range page.RemovedSlots {
			delete(read.Slots, name)
		}
		for _, name := range page.RemovedLogs {
			delete(read.Logs, name)
		}
		read.pages, read.signals = read.pages+1, append(read.signals, page.Signals...)
		maps.Copy(read.Slots, page.State.GetSlots())
		for name, part := range page.State.GetLogs() {
			if log := read.Logs[name]; log != nil { // it goes on
				log.Entries, log.RewrittenVersion = append(log.Entries, part.Entries...), part.RewrittenVersion
			} else {
				read.Logs[name] = part
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
			read.version, read.digest = page.Checkpoint.Version, page.Checkpoint.Digest
			t.version, t.digest, t.uid = read.version, read.digest, page.Checkpoint.Uid
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
